/* PoolBuffer: memory on loan from a Pool.
 *
 * Its bytes are counted as lent from its creation to its release; its memory stays for as long as
 * there are views of it. It is dropped unreleased only by mistake: that is reported, and the bytes
 * are returned.
 */

/* A buffer for bytes that are already taken; NULL: no memory, and the bytes are returned. */
static PyObject *pool_buffer_new(PoolObject *p, uint64_t n)
{
    uint64_t incarnation = p->incarnation; /* the garbage collector may run any code here */
    char *data = malloc(n);
    PoolBufferObject *buffer = data ? PyObject_GC_New(PoolBufferObject, pool_buffer_type) : NULL;
    if (buffer == NULL) {
        free(data);
        if (pool_is_ours(p, incarnation))
            pool_give(p, n);
        return PyErr_NoMemory();
    }
    buffer->pool = (PoolObject *)Py_NewRef((PyObject *)p);
    buffer->data = data;
    buffer->size = (Py_ssize_t)n;
    buffer->incarnation = incarnation;
    buffer->forks = p->worker->forks;
    buffer->exports = 0;
    buffer->released = false;
    PyObject_GC_Track(buffer);
    return (PyObject *)buffer;
}

/* The end of the loan: whatever happened to the worker, the memory goes; the bytes return if they
 * are still counted as ours. */
static inline void pool_buffer_end(PoolBufferObject *buffer)
{
    buffer->released = true;
    if (pool_is_ours(buffer->pool, buffer->incarnation))
        pool_give(buffer->pool, (uint64_t)buffer->size);
    if (buffer->exports == 0) {
        free(buffer->data);
        buffer->data = NULL;
    }
}

/* Was it lent to the parent of this forked process? */
static bool pool_buffer_is_foreign(const PoolBufferObject *buffer)
{
    const WorkerObject *w = buffer->pool->worker;
    return worker_is_forked(w) || w->forks != buffer->forks;
}

static bool pool_buffer_release(PoolBufferObject *buffer)
{
    if (wh_unlikely(buffer->released)) {
        PyErr_SetString(PyExc_ValueError, "this buffer was already released");
        return false;
    }
    if (wh_unlikely(!worker_is_closed(buffer->pool->worker) && pool_buffer_is_foreign(buffer))) {
        PyErr_SetString(errors.forked_client,
                        "this buffer was lent to the parent process, which releases it");
        return false;
    }
    pool_buffer_end(buffer);
    return true;
}

static PyObject *pool_buffer_release_method(PoolBufferObject *buffer, PyObject *unused)
{
    (void)unused;
    if (!pool_buffer_release(buffer))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *pool_buffer_enter(PoolBufferObject *buffer, PyObject *unused)
{
    (void)unused;
    return Py_NewRef((PyObject *)buffer);
}

static PyObject *pool_buffer_exit(PoolBufferObject *buffer, PyObject *exception)
{
    (void)exception;
    if (!buffer->released && !pool_buffer_release(buffer))
        return NULL;
    Py_RETURN_NONE;
}

static int pool_buffer_export(PoolBufferObject *buffer, Py_buffer *view, int flags)
{
    Held held;
    pool_buffer_lock(&held, buffer);
    bool released = buffer->released;
    int filled = released ? -1
                          : PyBuffer_FillInfo(view, (PyObject *)buffer, buffer->data, buffer->size,
                                              0, flags);
    buffer->exports += filled == 0;
    lock_end(&held);
    if (released) {
        view->obj = NULL;
        PyErr_SetString(PyExc_ValueError, "this buffer was released");
    }
    return filled;
}

static void pool_buffer_unexport(PoolBufferObject *buffer, Py_buffer *view)
{
    Held held;
    (void)view;
    pool_buffer_lock(&held, buffer);
    if (--buffer->exports == 0 && buffer->released) {
        free(buffer->data);
        buffer->data = NULL;
    }
    lock_end(&held);
}

static Py_ssize_t pool_buffer_length(PoolBufferObject *buffer) { return buffer->size; }

static PyObject *pool_buffer_is_released(PoolBufferObject *buffer, void *unused)
{
    (void)unused;
    return PyBool_FromLong(buffer->released);
}

static PyObject *pool_buffer_repr(PoolBufferObject *buffer)
{
    return PyUnicode_FromFormat("<PoolBuffer of %zd bytes from %R%s>", buffer->size,
                                buffer->pool->name, buffer->released ? ", released" : "");
}

/* Dropped without release: a mistake, which costs only a warning. */
static void pool_buffer_finalize(PoolBufferObject *buffer)
{
    PyObject *type, *value, *traceback;
    if (buffer->released)
        return;
    Held held;
    pool_buffer_lock(&held, buffer);
    bool foreign = pool_buffer_is_foreign(buffer);
    pool_buffer_end(buffer);
    lock_end(&held);
    if (foreign)
        return;
    PyErr_Fetch(&type, &value, &traceback);
    if (PyErr_ResourceWarning((PyObject *)buffer, 1,
                              "%zd bytes of pool %R were dropped without release()", buffer->size,
                              buffer->pool->name) < 0)
        /* warnings are errors here, which nobody could catch */
        PyErr_WriteUnraisable((PyObject *)buffer);
    PyErr_Restore(type, value, traceback);
}

static void pool_buffer_dealloc(PoolBufferObject *buffer)
{
    if (wh_unlikely(!buffer->released) && PyObject_CallFinalizerFromDealloc((PyObject *)buffer) < 0)
        return; /* a handler of the warning has kept the buffer */
    PyObject_GC_UnTrack(buffer);
    PyTypeObject *type = Py_TYPE(buffer);
    free(buffer->data);
    Py_DECREF(buffer->pool);
    type->tp_free(buffer);
    Py_DECREF(type);
}

static int pool_buffer_traverse(PoolBufferObject *buffer, visitproc visit, void *arg)
{
    Py_VISIT(buffer->pool);
    Py_VISIT(Py_TYPE(buffer));
    return 0;
}

static PyMethodDef pool_buffer_methods[] = {
    {"release", (PyCFunction)LOCKED(pool_buffer_release_method), METH_NOARGS,
     "release()\n--\n\n"
     "Give the bytes back to the pool.\n\n"
     "Existing views of the buffer, and its memory, stay valid; no new ones can be made.\n\n"
     "Raises\n------\nValueError\n    It was already released.\n"
     "ForkedClient\n    It was lent to the parent of this process.\n\n"
     "Notes\n-----\nLock-free; makes a system call only when somebody waits for memory. Any thread."},
    {"__enter__", (PyCFunction)pool_buffer_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)LOCKED(pool_buffer_exit), METH_VARARGS, NULL},
    {NULL}};

static PyGetSetDef pool_buffer_getset[] = {{"released", (getter)LOCKED(pool_buffer_is_released),
                                            NULL, "Whether its bytes were given back.", NULL},
                                           {NULL}};

static PyType_Slot pool_buffer_slots[] = {
    {Py_tp_dealloc, pool_buffer_dealloc},
    {Py_tp_finalize, pool_buffer_finalize},
    {Py_tp_traverse, pool_buffer_traverse},
    {Py_tp_repr, pool_buffer_repr},
    {Py_tp_methods, pool_buffer_methods},
    {Py_tp_getset, pool_buffer_getset},
    {Py_sq_length, pool_buffer_length},
    {Py_bf_getbuffer, pool_buffer_export},
    {Py_bf_releasebuffer, pool_buffer_unexport},
    {Py_tp_doc,
     "Writable memory on loan from a MemoryPool: exactly the bytes that were asked for.\n\n"
     "`memoryview(buffer)` and anything that takes a buffer (`sock.recv_into`) read and write it;\n"
     "`release()`, or the end of a `with` block, gives the bytes back."},
    {0, NULL}};
static PyType_Spec pool_buffer_spec = {
    "wheeld_core._native.PoolBuffer", sizeof(PoolBufferObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
        Py_TPFLAGS_IMMUTABLETYPE,
    pool_buffer_slots};
