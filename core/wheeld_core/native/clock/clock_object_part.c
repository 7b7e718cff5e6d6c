/* Clock: the object, and what it maps. */

typedef struct {
    PyObject_HEAD wh_clock clock;
    Mapping wheel, slots, registry, trace, keys;
    Mapping *workers; /* one per row */
    wh_peer *peers;
} ClockObject;

static wh_cold void clock_dealloc(ClockObject *self)
{
    for (uint32_t i = 0; self->workers && i < self->clock.max_workers; i++) {
        mapping_drop(&self->workers[i]);
        free(self->peers[i].returns);
    }
    free(self->workers);
    free(self->peers);
    free(self->clock.queue);
    wh_clock_free(&self->clock);
    mapping_drop(&self->wheel);
    mapping_drop(&self->slots);
    mapping_drop(&self->registry);
    mapping_drop(&self->keys);
    mapping_drop(&self->trace);
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static int64_t clock_time_of(uint32_t kind)
{
    static const clockid_t ids[WH_CLOCK_KINDS] = {[WH_CLOCK_BASE] = CLOCK_MONOTONIC,
                                                  [WH_CLOCK_REALTIME] = CLOCK_REALTIME,
                                                  [WH_CLOCK_BOOTTIME] = CLOCK_BOOTTIME};
    return wh_clock_read(ids[kind]);
}

/* Clock(wheel, slots, wheel_fd=-1, slots_fd=-1): the descriptors stay the caller's; -1: all of the
 * memory is there */
static wh_cold int clock_init(ClockObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"wheel", "slots", "wheel_fd", "slots_fd", NULL};
    PyObject *wheel, *slots;
    int wheel_fd = -1, slots_fd = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|ii:Clock", names, &wheel, &slots, &wheel_fd,
                                     &slots_fd))
        return -1;
    if (self->wheel.held) {
        PyErr_SetString(PyExc_TypeError, "Clock is already initialised");
        return -1;
    }
    wh_config config;
    if (!mapping_get_wheel(&self->wheel, wheel, true, &config))
        return -1;
    if (!mapping_get(&self->slots, slots, true, wh_geometry_of(&config).slots_bytes))
        return -1;
    self->peers = calloc(config.max_workers, sizeof *self->peers);
    self->workers = calloc(config.max_workers, sizeof *self->workers);
    if (!self->peers || !self->workers) {
        PyErr_NoMemory(); /* clock.seg stays NULL, so the object refuses all calls */
        return -1;
    }
    if (!wh_clock_bind(&self->clock, self->wheel.view.buf, self->slots.view.buf, self->peers)) {
        self->clock.seg = NULL;
        PyErr_NoMemory();
        return -1;
    }
    wh_clock_populate(&self->clock);
    self->clock.in_wheel.fd = wheel_fd;
    self->clock.in_slots.fd = slots_fd;
    if (!config.virtual_clock)
        self->clock.read_time = clock_time_of, self->clock.exact = true;
    return 0;
}

static bool clock_made(ClockObject *self)
{
    if (self->clock.seg != NULL)
        return true;
    PyErr_SetString(PyExc_ValueError, "this Clock has no wheel");
    return false;
}

static bool clock_row(ClockObject *self, unsigned int row)
{
    if (!clock_made(self))
        return false;
    if (row < self->clock.max_workers)
        return true;
    PyErr_Format(PyExc_ValueError, "row %u of a table of %u", row, self->clock.max_workers);
    return false;
}

/* trace(segment): record every event from now on, where the last clock stopped */
static wh_cold PyObject *clock_trace(ClockObject *self, PyObject *segment)
{
    if (!clock_made(self))
        return NULL;
    if (self->trace.held)
        return PyErr_Format(PyExc_ValueError, "this Clock already has a trace");
    if (!mapping_get_trace(&self->trace, segment))
        return NULL;
    wh_trace_seg *seg = self->trace.view.buf;
    if (seg->capacity != self->clock.wheel.capacity) {
        PyErr_Format(PyExc_ValueError, "trace of %u slots for a wheel of %u", seg->capacity,
                     self->clock.wheel.capacity);
        mapping_drop(&self->trace);
        return NULL;
    }
    wh_trace_bind(&self->clock.trace, seg);
    Py_RETURN_NONE;
}

/* keys(segment): look there whether the word of a timer's key names it */
static wh_cold PyObject *clock_keys(ClockObject *self, PyObject *segment)
{
    if (!clock_made(self))
        return NULL;
    uint32_t rows = self->clock.max_workers, capacity = self->clock.wheel.capacity;
    wh_keys_free(&self->clock.keys);
    self->clock.keys.memory = NULL;
    mapping_drop(&self->keys);
    if (!mapping_get(&self->keys, segment, true, wh_keys_parts_of(rows, capacity).bytes))
        return NULL;
    if (!wh_keys_bind(&self->clock.keys, self->keys.view.buf, rows, capacity, self->clock.states,
                      self->clock.slots, WH_NIL))
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* groups(registry): look there whether the number of a group still has the name that a sender
 * found */
static wh_cold PyObject *clock_groups(ClockObject *self, PyObject *registry)
{
    if (!clock_made(self))
        return NULL;
    wh_config config = wh_config_of(self->wheel.view.buf);
    wh_geometry g = wh_geometry_of(&config);
    self->clock.groups = NULL;
    mapping_drop(&self->registry);
    if (!mapping_get(&self->registry, registry, false, g.registry_bytes))
        return NULL;
    self->clock.groups = (const wh_group *)((char *)self->registry.view.buf + g.groups_off);
    Py_RETURN_NONE;
}
