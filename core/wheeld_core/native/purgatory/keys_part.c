/* Keys: from Python objects to hashes that all processes agree on, and the table of watched ones.
 *
 * The table is a worker's own: chained, with 65,536 heads or a multiple of that, indexed by the low
 * bits of the hash. So the keys of one bucket of the watch directory are in every 65,536th
 * chain. */

typedef struct Watch Watch;

typedef struct KeyEntry { /* a key that somebody watches */
    uint64_t hash;
    PyObject *key;
    struct PurgatoryObject *purgatory; /* borrowed: its operations hold a reference */
    struct KeyEntry *chain;
    Watch *first, *last; /* in the order in which they came */
    uint64_t count;
} KeyEntry;

struct Watch { /* one operation under one key; in the operation's array */
    KeyEntry *entry; /* NULL: not linked */
    struct OperationObject *op; /* strong while linked */
    Watch *prev, *next;
};

typedef struct {
    KeyEntry **heads;
    uint64_t size, entries;
} KeyTable;

typedef struct {
    PyObject *key; /* exact str, bytes, int, or a tuple of those */
    uint64_t hash;
} ParsedKey;

static bool key_hash_int(PyObject *number, uint64_t *hash)
{
    int beyond;
    long long value = PyLong_AsLongLongAndOverflow(number, &beyond);
    if (beyond == 0) {
        *hash = wh_hash_piece(*hash, 'i', &value, sizeof value);
        return true;
    }
    PyObject *text = PyNumber_ToBase(number, 16);
    Py_ssize_t length;
    const char *digits = text ? PyUnicode_AsUTF8AndSize(text, &length) : NULL;
    if (digits)
        *hash = wh_hash_piece(*hash, 'I', digits, (size_t)length);
    Py_XDECREF(text);
    return digits != NULL;
}

static inline bool key_hash_plain(PyObject *plain, uint64_t *hash)
{
    /* its UTF-8 as it stands */
    if (wh_likely(PyUnicode_CheckExact(plain) && PyUnicode_IS_COMPACT_ASCII(plain))) {
        *hash = wh_hash_piece(*hash, 's', PyUnicode_1BYTE_DATA(plain),
                              (size_t)PyUnicode_GET_LENGTH(plain));
        return true;
    }
    if (PyLong_CheckExact(plain))
        return key_hash_int(plain, hash);
    Py_ssize_t length;
    if (PyBytes_CheckExact(plain)) {
        *hash =
            wh_hash_piece(*hash, 'b', PyBytes_AS_STRING(plain), (size_t)PyBytes_GET_SIZE(plain));
        return true;
    }
    const char *text = text_utf8(plain, &length, "key ");
    if (text)
        *hash = wh_hash_piece(*hash, 's', text, (size_t)length);
    return text != NULL;
}

static bool key_hash(PyObject *plain, uint64_t *hash)
{
    if (!PyTuple_CheckExact(plain))
        return key_hash_plain(plain, hash);
    Py_ssize_t n = PyTuple_GET_SIZE(plain);
    bool ok = true;
    *hash = wh_hash_add(*hash, (uint64_t)n << 8 | '(');
    for (Py_ssize_t i = 0; ok && i < n; i++)
        ok = key_hash_plain(PyTuple_GET_ITEM(plain, i), hash);
    return ok;
}

/* Check and hash a key of the purgatory with that seed. False: an error is set. */
static bool key_parse(PyObject *object, uint64_t seed, ParsedKey *parsed)
{
    parsed->hash = seed;
    if (wh_likely(PyUnicode_CheckExact(object) || PyLong_CheckExact(object))) {
        parsed->key = Py_NewRef(object);
        if (wh_likely(key_hash_plain(object, &parsed->hash)))
            return true;
        Py_CLEAR(parsed->key);
        return false;
    }
    parsed->key = PyTuple_Check(object) ? key_plain_tuple(object) : key_plain(object);
    if (parsed->key == NULL || key_hash(parsed->key, &parsed->hash))
        return parsed->key != NULL;
    Py_CLEAR(parsed->key);
    return false;
}

/* Are two plain keys of the same hash equal? Of one type each piece: == on a str and bytes may
 * warn. */
static bool key_equal(PyObject *a, PyObject *b)
{
    if (a == b)
        return true;
    if (Py_TYPE(a) != Py_TYPE(b))
        return false;
    if (!PyTuple_CheckExact(a))
        return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
    Py_ssize_t n = PyTuple_GET_SIZE(a);
    bool same = n == PyTuple_GET_SIZE(b);
    for (Py_ssize_t i = 0; same && i < n; i++)
        same = key_equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
    return same;
}

/* -- the table --------------------------------------------------------------------------------- */

static bool table_init(KeyTable *t)
{
    *t = (KeyTable){.heads = calloc(WH_BUCKETS, sizeof *t->heads), .size = WH_BUCKETS};
    return t->heads != NULL;
}

static inline KeyEntry **table_head(const KeyTable *t, uint64_t hash)
{
    return &t->heads[hash & (t->size - 1)];
}

static KeyEntry *table_find(const KeyTable *t, const struct PurgatoryObject *p,
                            const ParsedKey *key)
{
    KeyEntry *e = *table_head(t, key->hash);
    while (e && !(e->hash == key->hash && e->purgatory == p && key_equal(e->key, key->key)))
        e = e->chain;
    return e;
}

/* Double the heads when there are two entries per head. Without memory the chains just get
 * longer. */
static void table_grow(KeyTable *t)
{
    KeyTable more = {.heads = calloc(2 * t->size, sizeof *t->heads), .size = 2 * t->size};
    if (more.heads == NULL)
        return;
    for (uint64_t i = 0; i < t->size; i++)
        for (KeyEntry *e = t->heads[i], *next; e; e = next) {
            KeyEntry **head = table_head(&more, e->hash);
            next = e->chain;
            e->chain = *head;
            *head = e;
        }
    free(t->heads);
    t->heads = more.heads;
    t->size = more.size;
}

/* A new entry for a key that has none. NULL: no memory. */
static KeyEntry *table_add(KeyTable *t, struct PurgatoryObject *p, const ParsedKey *key)
{
    KeyEntry *e = malloc(sizeof *e);
    if (e == NULL)
        return NULL;
    if (t->entries++ >= 2 * t->size)
        table_grow(t);
    KeyEntry **head = table_head(t, key->hash);
    *e = (KeyEntry){.hash = key->hash, .key = Py_NewRef(key->key), .purgatory = p, .chain = *head};
    *head = e;
    return e;
}

/* Remove an entry that nobody watches. */
static void table_remove(KeyTable *t, KeyEntry *entry)
{
    KeyEntry **at = table_head(t, entry->hash);
    while (*at != entry)
        at = &(*at)->chain;
    *at = entry->chain;
    t->entries--;
    Py_DECREF(entry->key);
    free(entry);
}

static void entry_append(KeyEntry *e, Watch *watch)
{
    watch->entry = e;
    watch->prev = e->last;
    watch->next = NULL;
    *(e->last ? &e->last->next : &e->first) = watch;
    e->last = watch;
    e->count++;
}

static void entry_unlink(Watch *watch)
{
    KeyEntry *e = watch->entry;
    *(watch->prev ? &watch->prev->next : &e->first) = watch->next;
    *(watch->next ? &watch->next->prev : &e->last) = watch->prev;
    watch->entry = NULL;
    e->count--;
}
