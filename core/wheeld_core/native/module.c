/* wheeld_core._native: the one extension, one translation unit. */
#include "native.h"

#include "shared/locked_part.c"
#include "shared/names_part.c"
#include "shared/layout_part.c"
#include "supervisor/sharing_part.c"
#include "clock/trace_part.c"
#include "shared/gather_part.c"
#include "clock/clock_object_part.c"
#include "clock/clock_part.c"
#include "shared/plain_keys_part.c"
#include "worker/life_part.c"
#include "worker/arguments_part.c"
#include "worker/locked_part.c"
#include "shared/memory_part.c"
#include "shared/whole_part.c"
#include "worker/usable_part.c"
#include "worker/sleep_part.c"
#include "worker/room_part.c"
#include "shared/waiting_part.c"
#include "worker/handle_part.c"
#include "worker/keys_part.c"
#include "worker/worker_part.c"
#include "worker/batch_part.c"
#include "worker/records_part.c"
#include "worker/quota_part.c"
#include "worker/receive_part.c"
#include "purgatory/errors_part.c"
#include "purgatory/keys_part.c"
#include "purgatory/watching_part.c"
#include "worker/callback_part.c"
#include "purgatory/operation_part.c"
#include "purgatory/purgatory_part.c"
#include "worker/renew_part.c"
#include "worker/worker_type.c"
#include "limit/limit_type.c"
#include "lease/lease_part.c"
#include "lease/lease_wait_part.c"
#include "lease/lease_type.c"
#include "pool/pool_part.c"
#include "pool/locked_part.c"
#include "pool/pool_buffer_part.c"
#include "pool/pool_wait_part.c"
#include "pool/pool_type.c"

/* The fixed cost of a hot call: the floor that benchmarks compare with. */
static PyObject *native_read_clock(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    (void)module, (void)args, (void)n;
    return PyLong_FromLongLong(wh_clock_read(CLOCK_MONOTONIC));
}

static PyMethodDef functions[] = {
    /* layout() -> {struct: (size, [(name, type, offset, itemsize, count)])} */
    {"layout", native_layout, METH_NOARGS, NULL},
    /* packing() -> [(word, part, first bit, bits)] */
    {"packing", native_packing, METH_NOARGS, NULL},
    /* geometry(**config) -> sizes and offsets of all segments, bytes */
    {"geometry", (PyCFunction)(void (*)(void))native_geometry, METH_VARARGS | METH_KEYWORDS, NULL},
    /* The memory of slabs in the segments: see layout_part.c. */
    {"spans", (PyCFunction)(void (*)(void))native_spans, METH_VARARGS | METH_KEYWORDS, NULL},
    /* heap_bytes(wheel, slots) -> the bytes of all payloads in the heap */
    {"heap_bytes", native_heap_bytes, METH_VARARGS, NULL},
    /* heap_read(wheel, slots, id) -> the payload of a timer; None: it has none there */
    {"heap_read", native_heap_read, METH_VARARGS, NULL},
    /* heap_write(wheel, slots, id, payload) -> was there room? */
    {"heap_write", native_heap_write, METH_VARARGS, NULL},
    /* Let workers use chunks of the heap that have memory. */
    {"open_chunks", native_open_chunks, METH_VARARGS, NULL},
    /* Let workers claim slabs that have memory. */
    {"open_slabs", native_open_slabs, METH_VARARGS, NULL},
    /* create(wheel, slots, registry, boot_id, **config): fill zeroed segments */
    {"create", (PyCFunction)(void (*)(void))native_create, METH_VARARGS | METH_KEYWORDS, NULL},
    /* create_worker(segment, wheel, row): fill a zeroed worker segment */
    {"create_worker", native_create_worker, METH_VARARGS, NULL},
    /* set_row_state(registry, row, state): publish a row of the worker table, after its fields */
    {"set_row_state", native_set_row_state, METH_VARARGS, NULL},
    /* set_daemon_state(wheel, state): mark a wheel without a clock as ended */
    {"set_daemon_state", native_set_daemon_state, METH_VARARGS, NULL},
    /* name_group(registry, group, name): publish or replace an entry of the group table */
    {"name_group", native_name_group, METH_VARARGS, NULL},
    /* watch_bytes(max_workers) -> size of the watch segment */
    {"watch_bytes", native_watch_bytes, METH_VARARGS, NULL},
    /* create_watch(segment, max_workers, token): fill a zeroed watch segment */
    {"create_watch", native_create_watch, METH_VARARGS, NULL},
    /* keys_bytes(max_workers, capacity) -> size of the keys segment, and where its holes begin */
    {"keys_bytes", native_keys_bytes, METH_VARARGS, NULL},
    /* create_keys(segment, max_workers, capacity, token): fill the head of a keys segment */
    {"create_keys", native_create_keys, METH_VARARGS, NULL},
    /* seat_keys(segment, max_workers, capacity, row, seated): its worker is gone; another comes */
    {"seat_keys", native_seat_keys, METH_VARARGS, NULL},
    /* wake_leases(segment, max_workers, capacity): all who wait for leases look again */
    {"wake_leases", native_wake_leases, METH_VARARGS, NULL},
    /* read_keys(segment, max_workers, capacity, ids) -> [(key, named), ...] of these timers */
    {"read_keys", native_read_keys, METH_VARARGS, NULL},
    /* encoded_key(key) -> its bytes, as they stand in the directory */
    {"encoded_key", native_encoded_key, METH_O, NULL},
    /* restore_keys(segment, max_workers, capacity, token, [(id, key, claims)]) -> is there room? */
    {"restore_keys", native_restore_keys, METH_VARARGS, NULL},
    /* seat_watcher(watch, row, incarnation) -> rows to ring for: mark what the row's last worker
     * was changing, clear it for a worker that comes; 0: for nobody */
    {"seat_watcher", native_seat_watcher, METH_VARARGS, NULL},
    /* owed_watchers(watch) -> rows of workers that sleep although something is marked for them */
    {"owed_watchers", native_owed_watchers, METH_O, NULL},
    /* pools_bytes(max_workers, pools) -> size of the pools segment */
    {"pools_bytes", native_pools_bytes, METH_VARARGS, NULL},
    /* create_pools(segment, max_workers, token, [(name, size, largest, strict)]): fill a zeroed
     * pools segment */
    {"create_pools", native_create_pools, METH_VARARGS, NULL},
    /* seat_borrower(pools, row, incarnation) -> bytes returned: take back what the row's last
     * worker had, for a worker that comes; 0: for nobody */
    {"seat_borrower", native_seat_borrower, METH_VARARGS, NULL},
    /* resume_pools(pools): finish what a killed supervisor was doing there */
    {"resume_pools", native_resume_pools, METH_O, NULL},
    /* trace_bytes(capacity, ring_bits) -> size of the trace segment */
    {"trace_bytes", native_trace_bytes, METH_VARARGS, NULL},
    /* create_trace(segment, capacity, ring_bits, token, position=0): fill a zeroed trace segment,
     * whose ring begins at `position` */
    {"create_trace", native_create_trace, METH_VARARGS, NULL},
    /* trace_take(trace, position, out) -> how many records were copied into the writable buffer
     * `out`: those from `position` on that are published and fit */
    {"trace_take", native_trace_take, METH_VARARGS, NULL},
    /* trace_release(trace, position): the records before it are kept, and the clock may write
     * over them */
    {"trace_release", native_trace_release, METH_VARARGS, NULL},
    /* trace_wait(trace, position) -> is there a record behind that? Sleeps until there is one, or
     * for no reason */
    {"trace_wait", native_trace_wait, METH_VARARGS, NULL},
    /* take_handles(handles, events, due): see handle_part.c */
    {"take_handles", (PyCFunction)(void (*)(void))native_take_handles, METH_FASTCALL, NULL},
    /* call_due(due, report): see handle_part.c */
    {"call_due", (PyCFunction)(void (*)(void))native_call_due, METH_FASTCALL, NULL},
    /* gather(array, itemsize, index, out): copy the items that `index` (int64) names, whole
     * words, each loaded with acquire: what is gathered later was loaded later */
    {"gather", native_gather, METH_VARARGS, NULL},
    /* shm_make(name, mode) -> fd: a new, empty POSIX shared memory object */
    {"shm_make", native_shm_make, METH_VARARGS, NULL},
    /* shm_unlink(name) */
    {"shm_unlink", native_shm_unlink, METH_VARARGS, NULL},
    /* attach_status(segment, kind) -> (status, version found, fingerprint found) */
    {"attach_status", native_attach_status, METH_VARARGS, NULL},
    /* prepare_clock_process() -> fd: exact sleeps for this process; the descriptor is readable
     * when the wall clock was set */
    {"prepare_clock_process", native_prepare_clock_process, METH_NOARGS, NULL},
    /* read_clock(*anything): CLOCK_MONOTONIC, ns; the empty call of the benchmarks */
    {"read_clock", (PyCFunction)(void (*)(void))native_read_clock, METH_FASTCALL, NULL},
    {NULL}};

static wh_cold int find_errors(void)
{
    PyObject *module = PyImport_ImportModule("wheeld_core.errors");
    if (module == NULL)
        return -1;
    struct {
        const char *name;
        PyObject **where;
    } wanted[] = {{"WheelError", &errors.wheel_error},
                  {"WheelFull", &errors.wheel_full},
                  {"RingFull", &errors.ring_full},
                  {"DaemonNotRunning", &errors.daemon_not_running},
                  {"ForkedClient", &errors.forked_client},
                  {"ClientClosed", &errors.client_closed},
                  {"PayloadTooLarge", &errors.payload_too_large},
                  {"PayloadHeapFull", &errors.payload_heap_full},
                  {"DetachedFull", &errors.detached_full},
                  {"WordsFull", &errors.words_full},
                  {"KeysFull", &errors.keys_full},
                  {"KeyInUse", &errors.key_in_use},
                  {"InvalidDelay", &errors.invalid_delay}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if ((*wanted[i].where = PyObject_GetAttrString(module, wanted[i].name)) == NULL)
            return -1;
    Py_DECREF(module);
    if ((module = PyImport_ImportModule("wheeld_core.arguments")) == NULL)
        return -1;
    errors.shown = PyObject_GetAttrString(module, "shown");
    errors.float_of = PyObject_GetAttrString(module, "float_of");
    Py_DECREF(module);
    if ((module = PyImport_ImportModule("wheeld_core.timer_record")) == NULL)
        return -1;
    errors.timer_record = (PyTypeObject *)PyObject_GetAttrString(module, "TimerRecord");
    Py_DECREF(module);
    return errors.shown && errors.float_of && errors.timer_record ? 0 : -1;
}

/* Make a type of this module; `where` stores it for type checks, or is NULL. */
static wh_cold int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **where)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL)
        return -1;
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    if (where)
        *where = (PyTypeObject *)type; /* the module holds it */
    Py_DECREF(type);
    return failed;
}

static wh_cold int add_types(PyObject *module)
{
    struct {
        PyType_Spec *spec;
        PyTypeObject **where;
    } types[] = {{&clock_spec, NULL},
                 {&memory_spec, NULL},
                 {&whole_spec, NULL},
                 {&worker_spec, &worker_type},
                 {&waiting_spec, &waiting_type},
                 {&handle_spec, &handle_type},
                 {&operation_spec, &operation_type},
                 {&purgatory_spec, NULL},
                 {&limit_spec, NULL},
                 {&lease_spec, NULL},
                 {&pool_spec, NULL},
                 {&pool_buffer_spec, &pool_buffer_type}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (add_type(module, types[i].spec, types[i].where) < 0)
            return -1;
    return intern_names();
}

static wh_cold int add_constant(PyObject *module, const char *name, unsigned long long number)
{
    PyObject *value = PyLong_FromUnsignedLongLong(number);
    int failed = PyModule_AddObjectRef(module, name, value);
    Py_XDECREF(value);
    return failed;
}

static wh_cold int add_constants(PyObject *module)
{
    const char *name = wh_constant_names;
    for (size_t i = 0; i < sizeof wh_constants / sizeof *wh_constants; i++) {
        if (add_constant(module, name + sizeof "WH", wh_constants[i]) < 0)
            return -1;
        name = wh_text_after(name);
    }
    static const struct {
        char name[24];
        unsigned long long value;
    } own[] = {{"MOST_SECONDS", (unsigned long long)WH_MOST_SECONDS},
               {"ROOM_SECONDS", WH_ROOM_SECONDS},
               {"HUGE_BYTES", WH_HUGE_BYTES},
               {"HUGE_CAPACITY", WH_HUGE_CAPACITY},
               {"ATTACH_READY", WH_ATTACH_READY},
               {"ATTACH_TOO_SHORT", WH_ATTACH_TOO_SHORT},
               {"ATTACH_NOT_READY", WH_ATTACH_NOT_READY},
               {"ATTACH_FOREIGN", WH_ATTACH_FOREIGN},
               {"ATTACH_VERSION", WH_ATTACH_VERSION},
               {"ATTACH_FINGERPRINT", WH_ATTACH_FINGERPRINT}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (add_constant(module, own[i].name, own[i].value) < 0)
            return -1;
    return 0;
}

static wh_cold int module_exec(PyObject *module)
{
    char fingerprint[17];
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)wh_fingerprint());
    /* types and exceptions are static: a second interpreter would replace those of the first */
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError,
                        "wheeld works only in the main interpreter of a process, "
                        "not in a subinterpreter (WSGIApplicationGroup %{GLOBAL} "
                        "in mod_wsgi)");
        return -1;
    }
    if (!gate_made() || find_errors() < 0 || add_types(module) < 0)
        return -1;
    if (PyModule_AddStringConstant(module, "FINGERPRINT", fingerprint) < 0 ||
        PyModule_AddStringConstant(module, "NOT_DRAINED", not_drained) < 0)
        return -1;
    return add_constants(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030d0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* shared/locked_part.c */
#endif
    {0, NULL}};
static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "wheeld_core._native",
                                        .m_doc = "wheeld's shared structures, in C.",
                                        .m_methods = functions, .m_slots = module_slots};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module_def); }
