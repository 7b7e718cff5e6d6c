/* Which locks the calls of pools hold on a free-threaded Python: see shared/locked_part.c. */

static inline void pool_lock(Held *held, PoolObject *p)
{
    lock_with_gate(held, (PyObject *)p->worker);
}

static inline void pool_buffer_lock(Held *held, PoolBufferObject *buffer)
{
    lock_with_gate(held, (PyObject *)buffer->pool->worker);
}

LOCKED_ONE(pool_lock, PoolObject, pool_try_allocate)
LOCKED_KEYWORDS(pool_lock, PoolObject, pool_allocate)
LOCKED_KEYWORDS(pool_lock, PoolObject, pool_wait_available)
LOCKED_ONE(pool_lock, PoolObject, pool_release)
LOCKED_ONE(pool_lock, PoolObject, pool_stats)
LOCKED_GET(pool_lock, PoolObject, pool_sensor)

LOCKED_ONE(pool_buffer_lock, PoolBufferObject, pool_buffer_release_method)
LOCKED_ONE(pool_buffer_lock, PoolBufferObject, pool_buffer_exit)
LOCKED_GET(pool_buffer_lock, PoolBufferObject, pool_buffer_is_released)
