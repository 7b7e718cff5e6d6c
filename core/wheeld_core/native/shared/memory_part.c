/* Memory: a mapped segment, at an address that lets it have huge pages. It keeps no descriptor
 * open, as mmap.mmap does until Python 3.13. An object that has its buffer keeps it mapped. */

typedef struct {
    PyObject_HEAD void *at;
    Py_ssize_t bytes;
    bool writable;
} MemoryObject;

/* Memory(fd, bytes, writable, populate=False): map a file that others write to, too; or zeros, if
 * `fd` is -1. The descriptor may be closed. */
static PyObject *memory_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int fd, writable, populate = 0;
    Py_ssize_t bytes;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "inp|p:Memory", &fd, &bytes, &writable, &populate))
        return NULL;
    MemoryObject *m = (MemoryObject *)type->tp_alloc(type, 0);
    if (m == NULL)
        return NULL;
    int flags = MAP_SHARED | (populate ? MAP_POPULATE : 0) | (fd == -1 ? MAP_ANONYMOUS : 0);
    int protection = PROT_READ | (writable ? PROT_WRITE : 0);
    void *at = bytes > 0 ? wh_map_file(fd, (uint64_t)bytes, protection, flags)
                         : (errno = EINVAL, MAP_FAILED);
    if (at == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(m);
        return NULL;
    }
    m->at = at;
    m->bytes = bytes;
    m->writable = writable;
    return (PyObject *)m;
}

static void memory_dealloc(MemoryObject *m)
{
    PyTypeObject *type = Py_TYPE(m);
    if (m->at)
        munmap(m->at, (size_t)m->bytes);
    type->tp_free(m);
    Py_DECREF(type);
}

static int memory_buffer(MemoryObject *m, Py_buffer *view, int flags)
{
    return PyBuffer_FillInfo(view, (PyObject *)m, m->at, m->bytes, !m->writable, flags);
}

static Py_ssize_t memory_length(MemoryObject *m) { return m->bytes; }

/* make_huge(fd, offset, bytes): huge pages for what is reserved there, as far as there are any. */
static PyObject *memory_make_huge(MemoryObject *m, PyObject *args)
{
    int fd;
    unsigned long long offset, bytes;
    if (!PyArg_ParseTuple(args, "iKK", &fd, &offset, &bytes))
        return NULL;
    uint64_t before = offset % WH_HUGE_BYTES; /* nobody else makes the page that `offset` is in */
    wh_make_huge(fd, m->at, (uint64_t)m->bytes, offset - before, bytes + before);
    (void)madvise(m->at, (size_t)m->bytes, MADV_DONTNEED); /* who only makes it needs no tables */
    Py_RETURN_NONE;
}

static PyMethodDef memory_methods[] = {
    {"make_huge", (PyCFunction)memory_make_huge, METH_VARARGS,
     "Make huge pages of a part of the file, which the caller then reserves, as far as the kernel "
     "makes any."},
    {NULL}};
static PyType_Slot memory_slots[] = {{Py_tp_new, memory_new},
                                     {Py_tp_methods, memory_methods},
                                     {Py_tp_dealloc, memory_dealloc},
                                     {Py_bf_getbuffer, memory_buffer},
                                     {Py_sq_length, memory_length},
                                     {Py_tp_doc, "A mapped segment that keeps no descriptor open."},
                                     {0, NULL}};
static PyType_Spec memory_spec = {"wheeld_core._native.Memory", sizeof(MemoryObject), 0,
                                  Py_TPFLAGS_DEFAULT, memory_slots};

/* -- without posix_ipc: wheeld_core/shm.py ----------------------------------------------------- */

/* shm_make(name, mode) -> fd: a new, empty segment. */
static PyObject *native_shm_make(PyObject *module, PyObject *args)
{
    const char *name;
    int mode, fd;
    (void)module;
    if (!PyArg_ParseTuple(args, "si", &name, &mode))
        return NULL;
    if ((fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, (mode_t)mode)) >= 0)
        return PyLong_FromLong(fd);
    return PyErr_SetFromErrnoWithFilename(PyExc_OSError, name);
}

/* shm_unlink(name) */
static PyObject *native_shm_unlink(PyObject *module, PyObject *args)
{
    const char *name;
    (void)module;
    if (!PyArg_ParseTuple(args, "s", &name))
        return NULL;
    if (shm_unlink(name) < 0)
        return PyErr_SetFromErrnoWithFilename(PyExc_OSError, name);
    Py_RETURN_NONE;
}
