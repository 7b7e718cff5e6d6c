/* The layout, exported: field tables for the numpy dtypes and shm_layout.md; segment creation. */

static wh_cold int append_new(PyObject *list, PyObject *item)
{
    int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return failed;
}

/* result[name] = (size, fields) */
static wh_cold bool export_struct(PyObject *result, wh_struct_table s)
{
    const char *type = s.fields;
    PyObject *fields = PyList_New(0);
    bool ok = fields != NULL;
    for (uint32_t i = 0; ok && i < s.field_count; i++, type = wh_text_after(type)) {
        const char *name = strchr(type, ' ') + 1;
        ok = !append_new(fields, Py_BuildValue("(ss#IHH)", name, type, name - 1 - type,
                                               s.at[i].offset, s.at[i].size, s.at[i].count));
    }
    PyObject *entry = Py_BuildValue("(IN)", s.size, fields); /* NULL if `fields` is */
    ok = ok && entry && PyDict_SetItemString(result, s.name, entry) == 0;
    Py_XDECREF(entry);
    return ok;
}

static wh_cold PyObject *native_layout(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    PyObject *result = PyDict_New();
    bool ok = result != NULL;
#define EXPORT_STRUCT(name, ...) ok = ok && export_struct(result, wh_table_of_##name());
    WH_STRUCTS(EXPORT_STRUCT)
    if (!ok)
        Py_CLEAR(result);
    return result;
}

static wh_cold PyObject *native_packing(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    const char *word = wh_part_names;
    PyObject *result = PyList_New(0);
    for (size_t i = 0; result && i < sizeof wh_part_bits / sizeof *wh_part_bits; i++) {
        const char *part = strchr(word, ' ') + 1;
        if (append_new(result, Py_BuildValue("(s#sBB)", word, part - 1 - word, part,
                                             wh_part_bits[i].at, wh_part_bits[i].bits)))
            Py_CLEAR(result);
        word = wh_text_after(word);
    }
    return result;
}

/* -- creation ------------------------------------------------------------------------------- */

static wh_cold bool parse_config(PyObject *args, PyObject *kwargs, wh_config *c)
{
    static char *names[] = {"capacity",      "max_workers",   "tick_ns",     "wheel_bits",
                            "payload_bytes", "virtual_clock", "origin_ns",   "token",
                            "homes",         "backed",        "heap_chunks", "max_payload",
                            "heap_backed",   "detached_most", NULL};
    unsigned int capacity = 0, max_workers = 0, wheel_bits = 0, payload_bytes = 0;
    unsigned int virtual_clock = 0, homes = 0, backed = 0, heap_chunks = 0, max_payload = 0,
                 heap_backed = 0, detached_most = UINT32_MAX;
    long long tick_ns = 0, origin_ns = 0; /* what must be given is out of range at 0 */
    unsigned long long token = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$IILIIILKIIIIII:config", names, &capacity,
                                     &max_workers, &tick_ns, &wheel_bits, &payload_bytes,
                                     &virtual_clock, &origin_ns, &token, &homes, &backed,
                                     &heap_chunks, &max_payload, &heap_backed, &detached_most))
        return false;
    *c = (wh_config){.tick_ns = tick_ns,
                     .wheel_bits = wheel_bits,
                     .capacity = capacity,
                     .max_workers = max_workers,
                     .payload_bytes = payload_bytes,
                     .virtual_clock = virtual_clock,
                     .origin_ns = origin_ns,
                     .homes = homes,
                     .backed = backed,
                     .heap_chunks = heap_chunks,
                     .max_payload = max_payload,
                     .detached_most = detached_most,
                     .heap_backed = heap_backed,
                     .token = token};
    if (wh_config_fits(c))
        return true;
    PyErr_SetString(PyExc_ValueError, "the configuration is out of the layout's range");
    return false;
}

static wh_cold PyObject *native_geometry(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    wh_config c;
    if (!parse_config(args, kwargs, &c))
        return NULL;
    wh_geometry g = wh_geometry_of(&c);
#define G(name) #name, (unsigned long long)g.name
    return Py_BuildValue(
        "{sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK sK}",
        G(levels), G(words), G(shards), G(lists), G(slab_count), G(sub_bits), G(comp_bits),
        G(ret_bits), G(ports_off), G(undo_off), G(histograms_off), G(counts_off), G(shards_off),
        G(summary_off), G(occupancy_off), G(links_off), G(holders_off), G(wheel_bytes),
        G(owners_off), G(states_off), G(slots_off), G(payloads_off), G(blocks_off), G(chunks_off),
        G(heap_off), G(slots_bytes), G(rows_off), G(groups_off), G(registry_bytes), G(sub_off),
        G(comp_off), G(ret_off), G(worker_bytes));
#undef G
}

/* spans(first, end, **config): what the slabs from `first` to before `end` need of the segments: a
 * list of (offset, bytes) of the wheel's, and one of the slots'. */
static wh_cold PyObject *native_spans(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    unsigned int first, end;
    wh_config c;
    PyObject *empty = PyTuple_New(0);
    bool ok =
        empty && PyArg_ParseTuple(args, "II", &first, &end) && parse_config(empty, kwargs, &c);
    Py_XDECREF(empty);
    if (!ok)
        return NULL;
    wh_geometry g = wh_geometry_of(&c);
    if (first > end || end > g.slab_count)
        return PyErr_Format(PyExc_ValueError, "slabs %u to %u of %u", first, end, g.slab_count);
    wh_span wheel[WH_SPANS], slots[WH_SPANS];
    wh_wheel_spans(&g, first, end, wheel);
    wh_slots_spans(&g, c.payload_bytes, first, end, slots);
#define SPAN(s) (unsigned long long)(s).offset, (unsigned long long)(s).bytes
    return Py_BuildValue("([(KK)(KK)][(KK)(KK)(KK)])", SPAN(wheel[0]), SPAN(wheel[1]),
                         SPAN(slots[0]), SPAN(slots[1]), SPAN(slots[2]));
#undef SPAN
}

/* The payload heap of two segments, while both are held. */
typedef struct {
    Mapping wheel, slots;
    wh_config config;
    wh_heap heap;
} HeapOf;

static void heap_drop(HeapOf *h)
{
    mapping_drop(&h->wheel);
    mapping_drop(&h->slots);
}

/* False: an error is set, and nothing is held. */
static bool heap_get(HeapOf *h, PyObject *wheel, PyObject *slots, bool writable)
{
    *h = (HeapOf){0};
    if (mapping_get_wheel(&h->wheel, wheel, false, &h->config) &&
        mapping_get(&h->slots, slots, writable, wh_geometry_of(&h->config).slots_bytes)) {
        h->heap = wh_heap_bind(&h->config, h->wheel.view.buf, h->slots.view.buf, 0);
        return true;
    }
    heap_drop(h);
    return false;
}

/* heap_bytes(wheel, slots) -> the bytes of all payloads in the heap. */
static PyObject *native_heap_bytes(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *wheel, *slots;
    HeapOf h;
    if (!PyArg_ParseTuple(args, "OO", &wheel, &slots) || !heap_get(&h, wheel, slots, false))
        return NULL;
    uint64_t bytes = wh_heap_bytes(&h.heap);
    heap_drop(&h);
    return PyLong_FromUnsignedLongLong(bytes);
}

/* heap_read(wheel, slots, id) -> the payload of a timer; None: it has none in the heap. Others may
 * end the timer meanwhile: who reads looks at its state before and after. */
static PyObject *native_heap_read(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *wheel, *slots, *bytes = NULL;
    unsigned long long id;
    HeapOf h;
    if (!PyArg_ParseTuple(args, "OOK", &wheel, &slots, &id) || !heap_get(&h, wheel, slots, false))
        return NULL;
    bool there = wh_id_given_slot(id) < h.config.capacity;
    uint32_t block = there ? wh_load_relaxed(&h.heap.blocks[wh_id_slot(id)].block) : 0;
    uint32_t size = wh_heap_size(&h.heap, block, id);
    if (size <= WH_MAX_PAYLOAD && (bytes = PyBytes_FromStringAndSize(NULL, size)) != NULL &&
        !wh_heap_read(&h.heap, block, id, PyBytes_AS_STRING(bytes), size))
        Py_CLEAR(bytes);
    heap_drop(&h);
    return bytes || PyErr_Occurred() ? bytes : Py_NewRef(Py_None);
}

/* heap_write(wheel, slots, id, payload) -> was there room? For segments that nobody else uses. */
static PyObject *native_heap_write(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *wheel, *slots;
    Py_buffer payload;
    unsigned long long id;
    HeapOf h;
    if (!PyArg_ParseTuple(args, "OOKy*", &wheel, &slots, &id, &payload))
        return NULL;
    bool ok = heap_get(&h, wheel, slots, true), done = false;
    if (ok && (wh_id_given_slot(id) >= h.config.capacity || payload.len < 1 ||
               payload.len > WH_MAX_PAYLOAD)) {
        PyErr_Format(PyExc_ValueError, "id %llu, payload of %zd bytes", id, payload.len);
        ok = false;
    } else if (ok) {
        done = wh_heap_write(&h.heap, id, payload.buf, (uint32_t)payload.len);
    }
    heap_drop(&h);
    PyBuffer_Release(&payload);
    return ok ? PyBool_FromLong(done) : NULL;
}

/* open_chunks(wheel, end): the heap's chunks before `end` have memory. For who makes the
 * segments. */
static PyObject *native_open_chunks(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *wheel;
    unsigned int end;
    Mapping map = {0};
    wh_config c;
    if (!PyArg_ParseTuple(args, "OI", &wheel, &end) || !mapping_get_wheel(&map, wheel, true, &c))
        return NULL;
    wh_wheel_seg *seg = map.view.buf;
    bool ok = end <= c.heap_chunks;
    if (ok && end > wh_load_relaxed(&seg->heap_backed))
        wh_store_release(&seg->heap_backed, end); /* pairs: heap-backed */
    mapping_drop(&map);
    if (!ok)
        return PyErr_Format(PyExc_ValueError, "chunk %u of %u", end, c.heap_chunks);
    Py_RETURN_NONE;
}

/* open_slabs(wheel, end): the memory of all slabs before `end` is there. For who makes the
 * segments. */
static wh_cold PyObject *native_open_slabs(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *wheel;
    unsigned int end;
    Mapping map = {0};
    wh_config c;
    if (!PyArg_ParseTuple(args, "OI", &wheel, &end))
        return NULL;
    bool ok = mapping_get_wheel(&map, wheel, true, &c);
    if (ok) {
        wh_wheel_seg *seg = map.view.buf;
        wh_geometry g = wh_geometry_of(&c);
        uint32_t first = wh_load_relaxed(&seg->backed);
        ok = end <= g.slab_count - c.homes;
        if (ok && first < end)
            wh_open_slabs(seg, wh_parts_of(seg, &g).links, first, end);
        else if (!ok)
            PyErr_Format(PyExc_ValueError, "slab %u of %u", end, g.slab_count - c.homes);
    }
    mapping_drop(&map);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* create(wheel, slots, registry, boot_id, **config): fill three zeroed, writable segments. */
static wh_cold PyObject *native_create(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    PyObject *objects[3];
    const char *boot_id;
    wh_config c;
    Mapping maps[3] = {0};
    if (!PyArg_ParseTuple(args, "OOOs", &objects[0], &objects[1], &objects[2], &boot_id))
        return NULL;
    PyObject *empty = PyTuple_New(0);
    bool ok = empty && parse_config(empty, kwargs, &c);
    Py_XDECREF(empty);
    if (!ok)
        return NULL;
    wh_geometry g = wh_geometry_of(&c);
    uint64_t bytes[3] = {g.wheel_bytes, g.slots_bytes, g.registry_bytes};
    for (int i = 0; ok && i < 3; i++)
        ok = mapping_get(&maps[i], objects[i], true, bytes[i]);
    if (ok) {
        wh_create_slots(maps[1].view.buf, &c);
        wh_create_registry(maps[2].view.buf, &c, boot_id);
        wh_create_wheel(maps[0].view.buf, &c);
    }
    for (int i = 0; i < 3; i++)
        mapping_drop(&maps[i]);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* create_worker(segment, wheel, row): fill a zeroed worker segment for that row. */
static wh_cold PyObject *native_create_worker(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *segment, *wheel;
    unsigned int row;
    Mapping seg = {0}, wheel_map = {0};
    if (!PyArg_ParseTuple(args, "OOI", &segment, &wheel, &row))
        return NULL;
    wh_config c;
    bool ok = mapping_get_wheel(&wheel_map, wheel, false, &c);
    if (ok) {
        wh_geometry g = wh_geometry_of(&c);
        ok = row < c.max_workers && mapping_get(&seg, segment, true, g.worker_bytes);
        if (ok)
            wh_create_worker(seg.view.buf, &c, wh_port_of(wheel_map.view.buf, &g, row));
        else if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "row %u of a table of %u", row, c.max_workers);
    }
    mapping_drop(&seg);
    mapping_drop(&wheel_map);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* A table of so many entries in a segment, or NULL and a ValueError if its head is damaged. */
static void *table_at(const Mapping *map, uint64_t offset, uint64_t count, size_t each)
{
    uint64_t size = (uint64_t)map->view.len;
    if (offset <= size && count <= (size - offset) / each && offset % WH_LINE == 0)
        return (char *)map->view.buf + offset;
    PyErr_SetString(PyExc_ValueError, "the head of the worker table is damaged");
    return NULL;
}

/* set_row_state(registry, row, state): publish a row of the worker table. */
static wh_cold PyObject *native_set_row_state(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *registry;
    unsigned int row, state;
    Mapping map = {0};
    if (!PyArg_ParseTuple(args, "OII", &registry, &row, &state) ||
        !mapping_get(&map, registry, true, sizeof(wh_registry_seg)))
        return NULL;
    wh_registry_seg *seg = map.view.buf;
    bool ok = row < seg->row_count;
    wh_row *rows = ok ? table_at(&map, seg->rows_off, row + UINT64_C(1), sizeof *rows) : NULL;
    if (rows) {
        /* pairs: row - else a name could be read that belongs to the row's last tenant */
        wh_store_release(&rows[row].state, state);
    } else if (!ok) {
        PyErr_Format(PyExc_ValueError, "no row %u in this table", row);
    }
    mapping_drop(&map);
    if (!rows)
        return NULL;
    Py_RETURN_NONE;
}

/* set_daemon_state(wheel, state): for a supervisor whose clock is dead; else Clock.set_state does
 * it. */
static wh_cold PyObject *native_set_daemon_state(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *wheel;
    unsigned int state;
    Mapping map = {0};
    if (!PyArg_ParseTuple(args, "OI", &wheel, &state))
        return NULL;
    wh_config c;
    bool ok = mapping_get_wheel(&map, wheel, true, &c);
    if (ok)
        /* pairs: daemon-state */
        wh_store_release(&((wh_wheel_seg *)map.view.buf)->daemon_state, state);
    mapping_drop(&map);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* name_group(registry, group, name): publish an entry of the group table, in place of the name that
 * it had. The number of uses goes up first: who still finds the old name, or half of the new one,
 * makes a target of a use that is over. */
static wh_cold PyObject *native_name_group(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *registry;
    unsigned int group;
    const char *name;
    Py_ssize_t length;
    Mapping map = {0};
    if (!PyArg_ParseTuple(args, "OIs#", &registry, &group, &name, &length))
        return NULL;
    if (group >= WH_GROUPS || length < 1 || length >= (Py_ssize_t)sizeof((wh_group){0}.name))
        return PyErr_Format(PyExc_ValueError, "group %u, name of %zd bytes", group, length);
    if (!mapping_get(&map, registry, true, sizeof(wh_registry_seg)))
        return NULL;
    const wh_registry_seg *seg = map.view.buf;
    wh_group *entry = table_at(&map, seg->groups_off, WH_GROUPS, sizeof *entry);
    if (entry == NULL) {
        mapping_drop(&map);
        return NULL;
    }
    entry += group;
    uint32_t used = wh_load_relaxed(&entry->used), uses = wh_group_uses(used);
    if (wh_group_named(used))
        wh_store_seq(&entry->used, wh_group_word(++uses, false)); /* pairs: group */
    memset(entry->name, 0, sizeof entry->name);
    memcpy(entry->name, name, (size_t)length);
    /* pairs: group - else half a name could be found */
    wh_store_release(&entry->used, wh_group_word(uses, true));
    mapping_drop(&map);
    Py_RETURN_NONE;
}

/* attach_status(segment, kind) -> (status, layout version found, fingerprint found) */
static wh_cold PyObject *native_attach_status(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *segment;
    int kind;
    Mapping map = {0};
    if (!PyArg_ParseTuple(args, "Oi", &segment, &kind) || !mapping_get(&map, segment, false, 0))
        return NULL;
    enum wh_attach status = wh_head_attach(map.view.buf, (uint64_t)map.view.len, kind);
    const wh_head *head = map.view.buf;
    bool readable = status != WH_ATTACH_TOO_SHORT || (size_t)map.view.len >= sizeof *head;
    PyObject *result = Py_BuildValue("(iIK)", (int)status, readable ? head->layout_version : 0,
                                     readable ? (unsigned long long)head->fingerprint : 0ull);
    mapping_drop(&map);
    return result;
}
