/* Results: what they mean, and why the last call failed. */
#include "internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[1024];

static size_t put(const char *format, va_list arguments)
{
    int n = vsnprintf(message, sizeof message, format, arguments);
    return n < 0 ? 0 : (size_t)n < sizeof message ? (size_t)n : sizeof message - 1;
}

int fail(int result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    put(format, arguments);
    va_end(arguments);
    return result;
}

int fail_errno(int result, const char *format, ...)
{
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    size_t used = put(format, arguments);
    va_end(arguments);
    snprintf(message + used, sizeof message - used, ": %s", strerror(error));
    return result;
}

const char *wheeld_message(void) { return message; }

const char *wheeld_result_text(int result)
{
    static const char *const texts[] = {
        [WHEELD_OK] = "done",
        [WHEELD_OVER] = "the timer has fired or was cancelled",
        [WHEELD_INVALID] = "an argument is not allowed",
        [WHEELD_FULL] = "no slot is free",
        [WHEELD_NOT_RUNNING] = "the wheeld daemon does not serve this client",
        [WHEELD_MISMATCH] = "client and daemon are of different versions",
        [WHEELD_NOT_PERMITTED] = "not permitted",
        [WHEELD_REFUSED] = "the daemon refused",
        [WHEELD_FORKED] = "the client belongs to the parent process",
        [WHEELD_NO_MEMORY] = "out of memory",
        [WHEELD_SYSTEM] = "the operating system refused",
    };
    bool known = result >= 0 && (size_t)result < sizeof texts / sizeof *texts;
    return known ? texts[result] : "no such result";
}
