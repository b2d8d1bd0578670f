// How both programs end when something is wrong: what it was on standard error, exit status 1; or 2 when more is asked for than goes.

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <lwip/err.h>

enum { FAILED = 1, TOO_MUCH = 2 };

static void give_up(int status, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));

static void give_up(int status, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fputs(PROGRAM ": ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(status);
}

#define fail(...) give_up(FAILED, __VA_ARGS__)

// An error of lwIP's in words; Debian's build has none of its own.
static const char *words(err_t error)
{
	switch (error) {
	case ERR_MEM:
		return "no memory, or a queue is full (ERR_MEM)";
	case ERR_BUF:
		return "no port is free, or no buffer (ERR_BUF)";
	case ERR_RTE:
		return "no route (ERR_RTE)";
	case ERR_USE:
		return "the address is in use (ERR_USE)";
	case ERR_CONN:
		return "not connected (ERR_CONN)";
	case ERR_IF:
		return "the device took no frame (ERR_IF)";
	case ERR_ABRT:
		return "lwIP gave it up: nobody answered, or its memory went to another (ERR_ABRT)";
	case ERR_RST:
		return "the other end sent a reset (ERR_RST)";
	case ERR_CLSD:
		return "it is closed (ERR_CLSD)";
	default:
		return "an error that is not expected here";
	}
}
