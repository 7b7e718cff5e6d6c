/* Keyword arguments of a METH_FASTCALL | METH_KEYWORDS method. */

/* Sort the arguments of `function` by name; the first `positional` names may come by place. */
static bool parse_keywords(const char *function, const char *const *names, Py_ssize_t positional,
                           PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                           PyObject **values)
{
    if (n > positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %zd positional arguments: got %zd",
                     function, positional, n);
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        values[i] = args[i];
    Py_ssize_t count = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, k);
        Py_ssize_t i = 0;
        while (names[i] && PyUnicode_CompareWithASCIIString(name, names[i]) != 0)
            i++;
        if (names[i] == NULL || values[i] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got %s argument %R", function,
                         names[i] ? "twice the" : "an unexpected keyword", name);
            return false;
        }
        values[i] = args[n + k];
    }
    return true;
}
