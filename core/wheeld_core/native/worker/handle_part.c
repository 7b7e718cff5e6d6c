/* Handles: a callback that waits for its time. The base of the client's TimerHandle. */
#include <structmember.h>

typedef struct {
    PyObject_HEAD PyObject *callbacks; /* the client's table of them */
    PyObject *callback, *args;
    PyObject *elsewhere; /* the token of its timer's wheel if others have that timer, or NULL */
    uint64_t id;
    char block;     /* whether its calls may wait for the clock */
    char cancelled; /* by its handle or by its timer's id, before it was called */
} HandleObject;

static PyTypeObject *handle_type;

static int handle_traverse(HandleObject *h, visitproc visit, void *arg)
{
    Py_VISIT(h->callbacks);
    Py_VISIT(h->callback);
    Py_VISIT(h->args);
    Py_VISIT(h->elsewhere);
    Py_VISIT(Py_TYPE(h));
    return 0;
}

static int handle_clear(HandleObject *h)
{
    Py_CLEAR(h->callbacks);
    Py_CLEAR(h->callback);
    Py_CLEAR(h->args);
    Py_CLEAR(h->elsewhere);
    return 0;
}

/* Memory of handles that are gone, for those that come: each of these is one allocation less that
 * the collector counts, and looks through all that wait for. */
#ifdef Py_GIL_DISABLED
enum { MOST_SPARE = 0 };
#else
enum { MOST_SPARE = 4096 };
#endif
static struct {
    HandleObject *handles[MOST_SPARE + 1];
    int count;
} spare;

static bool handle_is_plain(const PyTypeObject *type)
{
    return type->tp_basicsize == (Py_ssize_t)sizeof(HandleObject);
}

static void handle_dealloc(HandleObject *h)
{
    PyTypeObject *type = Py_TYPE(h);
    PyObject_GC_UnTrack(h);
    handle_clear(h);
    if (spare.count < MOST_SPARE && handle_is_plain(type))
        spare.handles[spare.count++] = h;
    else
        type->tp_free(h);
    Py_DECREF(type);
}

/* Empty, as its type's tp_alloc makes it. */
static HandleObject *handle_alloc(PyTypeObject *type)
{
    if (!spare.count || !handle_is_plain(type))
        return (HandleObject *)type->tp_alloc(type, 0);
    HandleObject *h = spare.handles[--spare.count];
    memset((char *)h + sizeof(PyObject), 0, sizeof *h - sizeof(PyObject));
    (void)PyObject_Init((PyObject *)h, type);
    PyObject_GC_Track(h);
    return h;
}

static PyObject *handle_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs; /* of subclasses */
    return (PyObject *)handle_alloc(type);
}

/* Without a call of __init__. */
static PyObject *handle_new(PyTypeObject *type, PyObject *callbacks, PyObject *callback,
                            PyObject *args, bool block)
{
    HandleObject *h = handle_alloc(type);
    if (h == NULL)
        return NULL;
    h->callbacks = Py_NewRef(callbacks);
    h->callback = Py_NewRef(callback);
    h->args = Py_NewRef(args);
    h->block = block;
    return (PyObject *)h;
}

/* Take its callback and arguments out; one caller gets them, the others NULL. */
static void handle_empty(HandleObject *h, PyObject **callback, PyObject **args)
{
#ifdef Py_GIL_DISABLED
    Py_BEGIN_CRITICAL_SECTION(h);
#endif
    *callback = h->callback, *args = h->args;
    h->callback = h->args = NULL;
#ifdef Py_GIL_DISABLED
    Py_END_CRITICAL_SECTION();
#endif
}

/* _take(): True for one caller, who has cancelled it: nobody calls its callback any more. False: it
 * was taken before. */
static PyObject *handle_take(HandleObject *h, PyObject *unused)
{
    PyObject *callback, *args;
    (void)unused;
    handle_empty(h, &callback, &args);
    bool taken = callback && args;
    Py_XDECREF(callback);
    Py_XDECREF(args);
    return PyBool_FromLong(taken);
}

static PyMethodDef handle_methods[] = {{"_take", (PyCFunction)handle_take, METH_NOARGS, NULL},
                                       {NULL, NULL, 0, NULL}};

/* clang-format off */
static PyMemberDef handle_members[] = {
    {"id", T_ULONGLONG, offsetof(HandleObject, id), 0, "The timer's id."},
    {"_callbacks", T_OBJECT_EX, offsetof(HandleObject, callbacks), 0, NULL},
    {"_callback", T_OBJECT_EX, offsetof(HandleObject, callback), 0, NULL},
    {"_args", T_OBJECT_EX, offsetof(HandleObject, args), 0, NULL},
    {"_elsewhere", T_OBJECT_EX, offsetof(HandleObject, elsewhere), 0, NULL},
    {"_block", T_BOOL, offsetof(HandleObject, block), 0, NULL},
    {"_cancelled", T_BOOL, offsetof(HandleObject, cancelled), 0, NULL},
    {NULL}};
/* clang-format on */

static PyType_Slot handle_slots[] = {{Py_tp_new, handle_tp_new},
                                     {Py_tp_dealloc, handle_dealloc},
                                     {Py_tp_traverse, handle_traverse},
                                     {Py_tp_clear, handle_clear},
                                     {Py_tp_members, handle_members},
                                     {Py_tp_methods, handle_methods},
                                     {Py_tp_doc, "The native half of TimerHandle."},
                                     {0, NULL}};
static PyType_Spec handle_spec = {"wheeld_core._native.Handle", sizeof(HandleObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                                  handle_slots};

/* The timer of `id` has ended without dispatch(): its callback, if it has one, is never called. */
static wh_seldom void handle_drop(WaitingObject *handles, uint64_t id, bool cancelled)
{
    PyObject *handle = waiting_look(handles, id, true), *callback, *args;
    if (handle && PyObject_TypeCheck(handle, handle_type)) {
        handle_empty((HandleObject *)handle, &callback, &args);
        ((HandleObject *)handle)->cancelled = cancelled;
        Py_XDECREF(callback);
        Py_XDECREF(args);
    }
    Py_XDECREF(handle);
}

/* Take the handles of `count` events into the list `due`, whose length that is; `others`, if any
 * are without: 1 for each of those. How many have one, or -1. */
static Py_ssize_t handles_pop(WaitingObject *handles, const Py_buffer *events, PyObject *due,
                              PyObject **others)
{
    Py_ssize_t found = 0, count = PyList_GET_SIZE(due);
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t id;
        memcpy(&id, (char *)events->buf + i * events->itemsize + offsetof(wh_completion, id),
               sizeof id);
        PyObject *handle = waiting_look(handles, id, true);
        if (handle) {
            PyList_SET_ITEM(due, found++, handle);
            continue;
        }
        if (*others == NULL) {
            if ((*others = PyByteArray_FromStringAndSize(NULL, count)) == NULL)
                return -1;
            memset(PyByteArray_AS_STRING(*others), 0, (size_t)count);
        }
        PyByteArray_AS_STRING(*others)[i] = 1;
    }
    return found;
}

/* poll() has received these events: the callbacks among them are not called. */
static void handles_drop(WaitingObject *handles, PyObject *events)
{
    Py_buffer view;
    if (PyObject_GetBuffer(events, &view, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return;
    }
    for (Py_ssize_t at = 0; at < view.len; at += view.itemsize) {
        uint64_t id;
        memcpy(&id, (char *)view.buf + at + offsetof(wh_completion, id), sizeof id);
        handle_drop(handles, id, false);
    }
    PyBuffer_Release(&view);
}

/* take_handles(handles, events, due): extend `due`, a deque or a list, by the handles of events, in
 * their order, as one step; a bytearray with 1 for each event without a handle, or None if all have
 * one. On an event loop waiters take the place of handles. */
static PyObject *native_take_handles(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    Py_buffer events;
    PyObject *others = NULL;
    (void)module;
    if (n != 3 || !is_waiting(args[0]))
        return PyErr_Format(PyExc_TypeError, "take_handles() takes a Waiting, events and a deque");
    if (PyObject_GetBuffer(args[1], &events, PyBUF_SIMPLE) < 0)
        return NULL;
    bool fit = events.itemsize >= (Py_ssize_t)sizeof(wh_completion);
    PyObject *due = PyList_New(fit ? events.len / events.itemsize : 0);
    Py_ssize_t found = due ? handles_pop((WaitingObject *)args[0], &events, due, &others) : -1;
    PyBuffer_Release(&events);
    PyObject *done = NULL;
    if (found >= 0 && PyList_SetSlice(due, found, PyList_GET_SIZE(due), NULL) == 0)
        done = PyObject_CallMethodOneArg(args[2], name_extend, due);
    Py_XDECREF(due);
    if (done == NULL)
        Py_CLEAR(others);
    else if (others == NULL)
        others = Py_NewRef(Py_None);
    Py_XDECREF(done);
    return others;
}

static PyObject *error_take(void); /* in errors_part.c */

/* Call a due handle's callback, unless it was cancelled. An Exception that it raises goes to
 * report(handle, callback, args, error). False: an error is set. */
static bool handle_call(PyObject *handle, PyObject *report)
{
    PyObject *callback, *args, *done = NULL;
    handle_empty((HandleObject *)handle, &callback, &args);
    bool ok = callback == NULL || args == NULL;
    if (!ok) {
        done = PyObject_CallObject(callback, args);
        if (done == NULL && PyErr_ExceptionMatches(PyExc_Exception)) {
            PyObject *error = error_take(), *before = PyErr_GetHandledException();
            PyErr_SetHandledException(error); /* as in an `except`: sys.exception() is the error */
            done = PyObject_CallFunctionObjArgs(report, handle, callback, args, error, NULL);
            PyErr_SetHandledException(before);
            Py_XDECREF(before);
            Py_DECREF(error);
        }
        ok = done != NULL;
    }
    Py_XDECREF(done);
    Py_XDECREF(callback);
    Py_XDECREF(args);
    return ok;
}

/* call_due(due, report): call the callbacks of all handles in a deque. An exception out of here
 * (from `report`, KeyboardInterrupt) leaves the rest there. A signal's handler, a callback or
 * another thread may empty it meanwhile. */
static PyObject *native_call_due(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    (void)module;
    if (n != 2)
        return PyErr_Format(PyExc_TypeError, "call_due() takes a deque and a function");
    PyObject *popleft = PyObject_GetAttr(args[0], name_popleft);
    if (popleft == NULL)
        return NULL;
    bool ok = true;
    for (Py_ssize_t left; ok && (left = PyObject_Size(args[0])) != 0;) {
        PyObject *handle = left > 0 ? PyObject_CallNoArgs(popleft) : NULL;
        if (handle == NULL && left > 0 && PyErr_ExceptionMatches(PyExc_IndexError)) {
            PyErr_Clear();
            break;
        }
        ok = handle && PyObject_TypeCheck(handle, handle_type);
        if (handle && !ok)
            PyErr_Format(PyExc_TypeError, "call_due() takes a deque of handles");
        ok = ok && handle_call(handle, args[1]) && PyErr_CheckSignals() == 0;
        Py_XDECREF(handle);
    }
    Py_DECREF(popleft);
    return ok ? Py_NewRef(Py_None) : NULL;
}
