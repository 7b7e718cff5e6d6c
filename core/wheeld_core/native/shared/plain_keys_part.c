/* Plain keys: objects of exactly these types: str, bytes, int, or a flat tuple of them. */

/* The UTF-8 of a str. NULL: an error is set, in which `what` stands before it. */
static const char *text_utf8(PyObject *text, Py_ssize_t *length, const char *what)
{
    if (wh_unlikely(!PyUnicode_Check(text))) {
        raise_about(PyExc_TypeError, text, "%s{}: expected a str", what);
        return NULL;
    }
    const char *found = PyUnicode_AsUTF8AndSize(text, length);
    if (wh_unlikely(found == NULL) && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        PyErr_Clear(); /* it is about a codec, which the caller has not named */
        raise_about(PyExc_ValueError, text,
                    "%s{}: got lone surrogates, which UTF-8 cannot hold; replace them, as "
                    "encode(errors='replace') does",
                    what);
    }
    return found;
}

static void key_refuse(PyObject *object)
{
    raise_about(PyExc_TypeError, object,
                "key {}: got %s, expected str, bytes, int, or a flat tuple of those",
                Py_TYPE(object)->tp_name);
}

/* A new reference to `object` as a plain str, bytes or int. NULL with TypeError: it is none. */
static PyObject *key_plain(PyObject *object)
{
    if (PyUnicode_CheckExact(object) || PyBytes_CheckExact(object) || PyLong_CheckExact(object))
        return Py_NewRef(object);
    if (PyUnicode_Check(object))
        return PyUnicode_FromObject(object);
    if (PyBytes_Check(object))
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object));
    if (PyLong_Check(object))
        return PyObject_CallOneArg((PyObject *)&PyLong_Type, object);
    if (PyIndex_Check(object)) { /* an integer of another type, such as numpy's */
        PyObject *number = PyNumber_Index(object);
        if (number || !PyErr_ExceptionMatches(PyExc_TypeError))
            return number;
        PyErr_Clear(); /* an array of several elements, which is none */
    }
    key_refuse(object);
    return NULL;
}

/* Is it a tuple of plain pieces? Then it can be the key as it is. */
static bool key_is_plain_tuple(PyObject *tuple)
{
    bool plain = PyTuple_CheckExact(tuple);
    for (Py_ssize_t i = 0; plain && i < PyTuple_GET_SIZE(tuple); i++) {
        PyTypeObject *type = Py_TYPE(PyTuple_GET_ITEM(tuple, i));
        plain = type == &PyUnicode_Type || type == &PyLong_Type || type == &PyBytes_Type;
    }
    return plain;
}

/* A new reference to a tuple of plain pieces. NULL: an error is set. */
static PyObject *key_plain_tuple(PyObject *tuple)
{
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    if (n && key_is_plain_tuple(tuple))
        return Py_NewRef(tuple);
    PyObject *plain = n ? PyTuple_New(n) : NULL;
    if (n == 0)
        key_refuse(tuple);
    for (Py_ssize_t i = 0; plain && i < n; i++) {
        PyObject *piece = key_plain(PyTuple_GET_ITEM(tuple, i));
        if (piece == NULL) {
            Py_CLEAR(plain);
            break;
        }
        PyTuple_SET_ITEM(plain, i, piece);
    }
    return plain;
}
