/* Names that are looked up from here, interned once at import: by no call, which another thread may
 * make at the same time. */

static PyObject *name_try_complete, *name_on_complete, *name_on_expiration, *name_report,
    *name_settle, *name_cancelled, *name_wake, *name_extend, *name_monkey, *name_greenlet,
    *name_getcurrent, *name_popleft;

static int intern_names(void)
{
    struct {
        const char *text;
        PyObject **where;
    } names[] = {{"try_complete", &name_try_complete},
                 {"on_complete", &name_on_complete},
                 {"on_expiration", &name_on_expiration},
                 {"_report", &name_report},
                 {"_settle", &name_settle},
                 {"_cancelled", &name_cancelled},
                 {"_wake", &name_wake},
                 {"extend", &name_extend},
                 {"gevent.monkey", &name_monkey},
                 {"greenlet", &name_greenlet},
                 {"getcurrent", &name_getcurrent},
                 {"popleft", &name_popleft}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((*names[i].where = PyUnicode_InternFromString(names[i].text)) == NULL)
            return -1;
    return 0;
}
