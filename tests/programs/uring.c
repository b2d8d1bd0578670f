// Asks for an io_uring in three ways, and says what each call returns: by the C library's syscall(), by an instruction of its own, and
// again in a child.
#include <errno.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char parameters[120];

static long by_library(void) {
    long result = syscall(SYS_io_uring_setup, 8, parameters);
    return result < 0 ? -errno : result;
}

static long by_instruction(void) {
#ifdef __x86_64__
    long result = SYS_io_uring_setup;
    __asm__ volatile("syscall" : "+a"(result) : "D"(8L), "S"(parameters) : "rcx", "r11", "memory");
    return result;
#else
    register long number __asm__("x8") = SYS_io_uring_setup;
    register long result __asm__("x0") = 8;
    register void *at __asm__("x1") = parameters;
    __asm__ volatile("svc 0" : "+r"(result) : "r"(number), "r"(at) : "memory");
    return result;
#endif
}

static const char *name(long result) {
    return result == -ENOSYS ? "ENOSYS" : result >= 0 ? "a ring" : "another error";
}

int main(void) {
    printf("library: %s\ninstruction: %s\n", name(by_library()), name(by_instruction()));
    fflush(stdout);
    if (fork() == 0) {
        printf("child: %s\n", name(by_library()));
        return 0;
    }
    wait(NULL);
    return 0;
}
