/* Errors that are kept until all operations were checked. */

/* Take the error that is set, as an object. */
static PyObject *error_take(void)
{
#if PY_VERSION_HEX >= 0x030c0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

static void error_raise(PyObject *error)
{
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
}

/* Move the error that is set into a list, which is created if needed. */
static void errors_keep(PyObject **list)
{
    PyObject *error = error_take();
    if (*list == NULL)
        *list = PyList_New(0);
    if (*list == NULL || PyList_Append(*list, error) < 0)
        PyErr_Clear(); /* no memory: one error is lost, but not the work */
    Py_DECREF(error);
}

/* The first of the errors that ends a program (KeyboardInterrupt, SystemExit), taken out; NULL:
 * there is none. */
static PyObject *errors_take_exit(PyObject *list)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        PyObject *error = PyList_GET_ITEM(list, i);
        if (PyObject_IsInstance(error, PyExc_Exception) != 0 ||
            PyObject_IsInstance(error, PyExc_BaseExceptionGroup) != 0)
            continue;
        Py_INCREF(error);
        if (PyList_SetSlice(list, i, i + 1, NULL) < 0)
            PyErr_Clear();
        return error;
    }
    return NULL;
}

/* The kept errors as one: itself, or a group. NULL: there are none. */
static PyObject *errors_join(PyObject *list)
{
    if (PyList_GET_SIZE(list) == 0)
        return NULL;
    if (PyList_GET_SIZE(list) == 1)
        return Py_NewRef(PyList_GET_ITEM(list, 0));
    PyObject *group =
        PyObject_CallFunction(PyExc_BaseExceptionGroup, "sO", "several operations raised", list);
    return group ? group : error_take();
}

/* Put `context`, which is taken over, at the end of what an error says it came from. */
static void error_add_context(PyObject *error, PyObject *context)
{
    PyObject *last = Py_NewRef(error), *next;
    for (int i = 0; i < 1000 && (next = PyException_GetContext(last)) != NULL; i++)
        Py_SETREF(last, next);
    if (last == context)
        Py_DECREF(context);
    else
        PyException_SetContext(last, context);
    Py_DECREF(last);
}

/* Raise what was kept: itself, or several as a group; but what ends the program by itself, as
 * nobody looks for it in a group, and the others as its context. False: an error is set. */
static bool errors_none(PyObject *list)
{
    if (list == NULL)
        return true;
    PyObject *exit = PyList_GET_SIZE(list) > 1 ? errors_take_exit(list) : NULL;
    PyObject *others = errors_join(list);
    Py_DECREF(list);
    error_raise(exit ? Py_NewRef(exit) : others);
    if (exit && others)
        error_add_context(exit, others);
    Py_XDECREF(exit);
    return false;
}
