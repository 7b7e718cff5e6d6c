/* Whole: a mapped segment that others may truncate, kept as long as it is mapped.
 *
 * To touch what a file has no more is SIGBUS, and no look at its size before the touch helps: it
 * can be cut short in between. So the signal's handler gives the file its length again, and the
 * touch is made once more, and finds zeros. The object says so afterwards (`cut`).
 * A fault in other memory, or in a segment that cannot be restored, ends the process as without
 * this handler. */

#include <signal.h>

#define WH_WHOLES 64
/* how often the same address may fault before it is taken for another error */
#define WH_AGAIN (1 << 20)

typedef struct {
    Mapping map;
    int fd;
    off_t cut; /* the smallest size found; -1: it was whole */
} Kept;
static Kept kept[WH_WHOLES];

typedef struct {
    PyObject_HEAD Kept *kept;
} WholeObject;

static Kept *kept_at(const char *at)
{
    for (int i = 0; i < WH_WHOLES; i++) {
        const char *begin = kept[i].map.held ? kept[i].map.view.buf : NULL;
        if (begin && at >= begin && at < begin + kept[i].map.view.len)
            return &kept[i];
    }
    return NULL;
}

static void on_bus(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    static const void *last;
    static int again;
    int before = errno;
    Kept *k = info->si_code == BUS_ADRERR ? kept_at(info->si_addr) : NULL;
    struct stat found;
    again = info->si_addr == last ? again + 1 : 0;
    last = info->si_addr;
    if (k && again < WH_AGAIN && fstat(k->fd, &found) == 0) {
        bool is_short = found.st_size < k->map.view.len;
        if (is_short && (k->cut < 0 || found.st_size < k->cut))
            k->cut = found.st_size;
        if (!is_short || ftruncate(k->fd, k->map.view.len) == 0) {
            errno = before;
            return;
        }
    }
    signal(signal_number, SIG_DFL); /* the same instruction raises it again */
}

/* Take a free entry for a segment. NULL: an error is set. */
static Kept *whole_keep(PyObject *memory, int fd)
{
    Kept *free_one = NULL;
    for (int i = 0; i < WH_WHOLES && !free_one; i++)
        free_one = kept[i].map.held ? NULL : &kept[i];
    if (free_one == NULL)
        return PyErr_Format(PyExc_ValueError, "%d segments are already registered, the maximum",
                            WH_WHOLES),
               NULL;
    if (!mapping_get(&free_one->map, memory, true, 1))
        return NULL;
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    free_one->fd = fd;
    free_one->cut = -1;
    sigaction(SIGBUS, &action, NULL);
    return free_one;
}

/* Whole(memory, fd): keep the file of `memory` as long as that is. The descriptor becomes the
 * object's. */
static PyObject *whole_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *memory;
    int fd;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "Oi:Whole", &memory, &fd))
        return NULL;
    WholeObject *whole = (WholeObject *)type->tp_alloc(type, 0);
    if (whole == NULL)
        return NULL;
    Held held;
    lock_with_gate(&held, NULL);
    whole->kept = whole_keep(memory, fd);
    lock_end(&held);
    if (whole->kept == NULL)
        Py_CLEAR(whole);
    return (PyObject *)whole;
}

static void whole_dealloc(WholeObject *whole)
{
    PyTypeObject *type = Py_TYPE(whole);
    if (whole->kept) {
        Held held;
        lock_with_gate(&held, NULL);
        mapping_drop(&whole->kept->map);
        close(whole->kept->fd);
        lock_end(&held);
    }
    type->tp_free(whole);
    Py_DECREF(type);
}

/* cut() -> int: the least size that the file had when something in it was missing, since the last
 * call; or
 * -1. */
static PyObject *whole_cut(WholeObject *whole, PyObject *nothing)
{
    (void)nothing;
    off_t cut = whole->kept->cut;
    whole->kept->cut = -1;
    return PyLong_FromLongLong(cut);
}

static PyMethodDef whole_methods[] = {
    {"cut", (PyCFunction)whole_cut, METH_NOARGS,
     "The smallest size at which the file was found truncated since the last call; -1: never."},
    {NULL}};
static PyType_Slot whole_slots[] = {{Py_tp_new, whole_new},
                                    {Py_tp_dealloc, whole_dealloc},
                                    {Py_tp_methods, whole_methods},
                                    {Py_tp_doc,
                                     "A mapped segment that restores its length when another "
                                     "process truncates it."},
                                    {0, NULL}};
static PyType_Spec whole_spec = {"wheeld_core._native.Whole", sizeof(WholeObject), 0,
                                 Py_TPFLAGS_DEFAULT, whole_slots};
