/* Declarations that the parts of the extension share. It is one translation unit: module.c includes
 * them all. */
#ifndef WHEELD_NATIVE_H
#define WHEELD_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include "wheeld/shared/key_hash.h"
#include "wheeld/sharing/pool.h"
#include "wheeld/worker/batch_keys.h"
#include "wheeld/worker/records.h"
#include "wheeld/loop/recover.h"
#include "wheeld/sharing/rows.h"
#include "wheeld/clock/trace.h"
#include "wheeld/sharing/leases.h"
#include "wheeld/sharing/limits.h"
#include "wheeld/sharing/sizes.h"
#include "wheeld/sharing/words.h"
#include "wheeld/loop/clock_check.h"

#define FAST(function) (PyCFunction)(void (*)(void)) function

/* Types that others check for, set at import. */
static PyTypeObject *worker_type, *operation_type;

/* Exceptions of wheeld_core.errors, looked up once at import. */
static struct {
    PyObject *wheel_error, *wheel_full, *words_full, *keys_full, *key_in_use, *ring_full,
        *daemon_not_running, *forked_client, *client_closed, *payload_too_large, *payload_heap_full,
        *detached_full, *invalid_delay;
    PyObject *shown; /* wheeld_core.arguments.shown */
    PyObject *float_of; /* wheeld_core.arguments.float_of */
    PyTypeObject *timer_record; /* wheeld_core.timer_record.TimerRecord, a NamedTuple */
} errors;

/* PyErr_Format(), in whose message the first "{}" stands for what a caller gave. That may be an
 * integer of a million digits, or an object whose repr raises: %R would raise another error.
 * Returns NULL. */
static wh_cold PyObject *raise_about(PyObject *type, PyObject *given, const char *format, ...)
{
    PyErr_Clear();
    va_list arguments;
    va_start(arguments, format);
    PyObject *text = PyUnicode_FromFormatV(format, arguments);
    va_end(arguments);
    PyObject *place = PyUnicode_FromString("{}");
    PyObject *shown = PyObject_CallOneArg(errors.shown, given);
    PyObject *message = text && place && shown ? PyUnicode_Replace(text, place, shown, 1) : NULL;
    if (message)
        PyErr_SetObject(type, message);
    Py_XDECREF(message);
    Py_XDECREF(shown);
    Py_XDECREF(place);
    Py_XDECREF(text);
    return NULL;
}

/* A mapped segment: the buffer keeps the mmap open as long as it is used. */
typedef struct {
    Py_buffer view;
    bool held;
} Mapping;

static void mapping_drop(Mapping *m)
{
    if (m->held)
        PyBuffer_Release(&m->view);
    m->held = false;
}

/* False: an error is set, and nothing is held. */
static bool mapping_get(Mapping *m, PyObject *object, bool writable, uint64_t bytes)
{
    if (PyObject_GetBuffer(object, &m->view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return false;
    m->held = true;
    if ((uint64_t)m->view.len >= bytes)
        return true;
    PyErr_Format(PyExc_ValueError, "segment is too short: got %zd bytes, expected at least %llu",
                 m->view.len, (unsigned long long)bytes);
    mapping_drop(m);
    return false;
}

/* Is `object` a ready wheel segment? What it was made with goes to `config`, read once and checked.
 * Sets ValueError if not; callers check kinds before. */
static bool mapping_get_wheel(Mapping *m, PyObject *object, bool writable, wh_config *config)
{
    if (!mapping_get(m, object, writable, sizeof(wh_wheel_seg)))
        return false;
    if (wh_head_attach(m->view.buf, (uint64_t)m->view.len, WH_KIND_WHEEL) != WH_ATTACH_READY) {
        PyErr_SetString(PyExc_ValueError, "not a ready wheel segment of this layout");
        return false;
    }
    *config = wh_config_of(m->view.buf);
    if (wh_config_fits(config) && wh_geometry_of(config).wheel_bytes <= (uint64_t)m->view.len)
        return true;
    PyErr_SetString(PyExc_ValueError, "the wheel segment is damaged: its sizes are out of range");
    return false;
}

#endif
