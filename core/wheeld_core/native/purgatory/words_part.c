/* Words: the shared words of a purgatory's keys, and changes that are noted before they are
 * made. */

/* The shared word of a key: 125 bits of hash, from two seeds that nobody outside of the daemon
 * knows. */
static bool word_key(PurgatoryObject *p, const ParsedKey *key, wh_word_key *word)
{
    ParsedKey other;
    if (!key_parse(key->key, wh_hash_add(p->seed, 'w'), &other))
        return false;
    *word = wh_words_key(key->hash, other.hash);
    Py_DECREF(other.key);
    return true;
}

/* May this worker still touch shared memory? If not, an error is set. */
static bool purgatory_has_row(PurgatoryObject *p)
{
    if (watching_has_row(p->worker))
        return true;
    PyErr_Format(errors.daemon_not_running,
                 "the daemon has taken this worker's row back: connect() again");
    return false;
}

/* A key for a call that may begin and touch what is shared, and its word. */
static bool purgatory_parse_word(PurgatoryObject *p, PyObject *object, ParsedKey *key,
                                 wh_word_key *word)
{
    if (!purgatory_parse_key(p, object, key))
        return false;
    if (word_key(p, key, word) && purgatory_has_row(p))
        return true;
    Py_DECREF(key->key);
    return false;
}

/* _word(key) -> its word; 0: it has none */
static PyObject *purgatory_word(PurgatoryObject *p, PyObject *object)
{
    ParsedKey key;
    wh_word_key word;
    if (!purgatory_parse_word(p, object, &key, &word))
        return NULL;
    Py_DECREF(key.key);
    return PyLong_FromUnsignedLongLong(wh_words_read(&p->worker->watching->watch, &word));
}

/* Complete what waits under a key whose condition has changed, here and elsewhere. -1: an error is
 * set. */
static int64_t purgatory_check_key(PurgatoryObject *p, const ParsedKey *key)
{
    PyObject *count = purgatory_check(p, key->key);
    int64_t completed = count ? PyLong_AsLongLong(count) : -1;
    Py_XDECREF(count);
    return completed;
}

static bool parse_word_value(PyObject *object, uint64_t *value)
{
    PyObject *number = PyNumber_Index(object);
    *value = number ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    return !PyErr_Occurred();
}

/* _grow(key, value, least=0, most=2**64-1) -> did the key's word, which was from `least` to `most`,
 * grow? If so the key was checked. */
static PyObject *purgatory_grow(PurgatoryObject *p, PyObject *const *args, Py_ssize_t n)
{
    ParsedKey key;
    wh_word_key word;
    uint64_t value, least = 0, most = UINT64_MAX;
    if (n < 2 || n > 4)
        return PyErr_Format(PyExc_TypeError, "_grow() takes a key and two to four numbers");
    if (!parse_word_value(args[1], &value) || (n > 2 && !parse_word_value(args[2], &least)) ||
        (n > 3 && !parse_word_value(args[3], &most)) ||
        !purgatory_parse_word(p, args[0], &key, &word))
        return NULL;
    int64_t checked = 0;
    Watching *g = p->worker->watching;
    Note note = watching_change(g, key.hash);
    enum wh_grown grown = wh_words_grow(&g->watch, &word, value, least, most);
    if (grown == WH_GREW)
        checked = purgatory_check_key(p, &key);
    watching_done(p->worker, note);
    Py_DECREF(key.key);
    if (checked < 0)
        return NULL;
    if (grown != WH_GREW_NO_ROOM)
        return PyBool_FromLong(grown == WH_GREW);
    return raise_about(
        errors.words_full, args[0],
        "no room for the word of key {}: %u places, and both sets of this key are full; forget() "
        "keys that are no longer needed",
        WH_WORD_SETS * WH_WORD_PLACES);
}

/* _forget(key, least=0) -> had it a word, of `least` or more? */
static PyObject *purgatory_forget(PurgatoryObject *p, PyObject *const *args, Py_ssize_t n)
{
    ParsedKey key;
    wh_word_key word;
    uint64_t least = 0;
    if (n < 1 || n > 2)
        return PyErr_Format(PyExc_TypeError, "_forget() takes a key and a number");
    if ((n > 1 && !parse_word_value(args[1], &least)) ||
        !purgatory_parse_word(p, args[0], &key, &word))
        return NULL;
    Py_DECREF(key.key);
    return PyBool_FromLong(wh_words_forget(&p->worker->watching->watch, &word, least));
}

/* _change(key) -> (tenant, place): its condition is about to change; for _done() */
static PyObject *purgatory_change(PurgatoryObject *p, PyObject *object)
{
    ParsedKey key;
    if (!purgatory_parse_key(p, object, &key))
        return NULL;
    Py_DECREF(key.key);
    if (!purgatory_has_row(p))
        return NULL;
    Note note = watching_change(p->worker->watching, key.hash);
    return Py_BuildValue("KI", (unsigned long long)note.tenant, note.place);
}

/* _done(tenant, place): the key was checked, or is not to be any more. */
static PyObject *purgatory_done(PurgatoryObject *p, PyObject *args)
{
    unsigned long long tenant;
    Note note;
    if (!PyArg_ParseTuple(args, "KI", &tenant, &note.place))
        return NULL;
    note.tenant = tenant;
    if (p->worker)
        watching_done(p->worker, note);
    Py_RETURN_NONE;
}
