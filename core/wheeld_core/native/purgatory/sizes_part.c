/* Publish a purgatory's size: two plain stores whenever an operation begins or ends its wait. */

/* May we write into our row? */
static bool purgatory_is_told(PurgatoryObject *p)
{
    return p->told && p->worker->watching && watching_has_row(p->worker) &&
           !worker_is_forked(p->worker);
}

static void purgatory_tell_size(PurgatoryObject *p)
{
    if (purgatory_is_told(p))
        wh_sizes_show(p->told, p->delayed, p->watched);
}

static void purgatory_begin_to_tell(PurgatoryObject *p, Watching *g, const char *name,
                                    Py_ssize_t length)
{
    p->told = watching_has_row(p->worker)
                  ? wh_sizes_open(&g->sizes, name, (size_t)length, g->tenant)
                  : NULL;
}

/* It was shut down, or is no longer referenced. */
static void purgatory_end_telling(PurgatoryObject *p)
{
    if (purgatory_is_told(p))
        wh_sizes_close(&p->worker->watching->sizes, p->told);
    p->told = NULL;
}
