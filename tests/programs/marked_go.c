/* A program that carries the note by which Go's linker marks its programs. */
#include <stdint.h>

__attribute__((used, section(".note.go.buildid"), aligned(4))) static const struct {
    uint32_t name_length, content_length, kind;
    char name[4], content[4];
} note = { 4, 4, 4, "Go", "id" };

int main(void)
{
    return 0;
}
