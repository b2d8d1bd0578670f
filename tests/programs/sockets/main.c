/*
 * sockets [-a ADDRESS] [-p PEER] [-c] STATEMENT...   run these
 * sockets --list                                      name them all
 *
 *   -a  the address of the stack under test [127.0.0.1]
 *   -p  the address of the kernel's end; without it both ends are on the stack under test
 *   -c  the near end connects instead of accepting
 */
#include "harness.h"

#define MAX 200
/* Seconds that a statement may take. */
#define PATIENCE 30

static struct {
    const char *name;
    void (*run)(void);
} statements[MAX];
static int statement_count;

static struct {
    const char *name;
    int (*run)(const char *);
} commands[8];
static int command_count;

const char *own_path;
extern const char *near_name, *far_name;
extern bool near_connects;

void add_statement(const char *name, void (*run)(void))
{
    statements[statement_count].name = name;
    statements[statement_count++].run = run;
}

void add_command(const char *name, int (*run)(const char *))
{
    commands[command_count].name = name;
    commands[command_count++].run = run;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

int main(int argc, char **argv)
{
    own_path = argv[0];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 4 && strcmp(argv[1], "--command") == 0) {
        for (int i = 0; i < command_count; i++)
            if (strcmp(argv[2], commands[i].name) == 0)
                return commands[i].run(argv[3]);
        return 2;
    }
    qsort(statements, statement_count, sizeof statements[0], by_name);
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (int i = 0; i < statement_count; i++)
            puts(statements[i].name);
        return 0;
    }
    int option;
    while ((option = getopt(argc, argv, "a:p:c")) != -1) {
        switch (option) {
        case 'a':
            near_name = optarg;
            break;
        case 'p':
            far_name = optarg;
            is_loopback = false;
            break;
        case 'c':
            near_connects = true;
            break;
        default:
            return 2;
        }
    }
    for (; optind < argc; optind++) {
        int i = 0;
        while (i < statement_count && strcmp(statements[i].name, argv[optind]))
            i++;
        if (i == statement_count) {
            fprintf(stderr, "sockets: no statement \"%s\"; see --list\n", argv[optind]);
            return 2;
        }
        alarm(PATIENCE);
        statements[i].run();
        printf("ok %s\n", statements[i].name);
    }
    return 0;
}
