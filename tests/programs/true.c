/* A program that does nothing, well. */
int main(void)
{
    return 0;
}
