/* Schedule, move, cancel and receive timers of a wheeld daemon.
 *
 *     wheeld start
 *     example [NAME]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <wheeld.h>

#define MS 1000000ll

static void check(int result)
{
    if (result == WHEELD_OK)
        return;
    fprintf(stderr, "%s: %s\n", wheeld_result_text(result), wheeld_message());
    exit(1);
}

int main(int argc, char **argv)
{
    const wheeld_options options = {.worker = "c-example"};
    wheeld *timers;
    uint64_t first, moved, cancelled;
    wheeld_event events[16];
    size_t received = 0, got;

    check(wheeld_connect(argc > 1 ? argv[1] : "default", &options, &timers));
    check(wheeld_schedule(timers, 50 * MS, 1, &first));
    check(wheeld_schedule(timers, 10 * MS, 2, &moved));
    check(wheeld_schedule(timers, 30 * MS, 3, &cancelled));
    check(wheeld_reschedule(timers, moved, 100 * MS));
    check(wheeld_cancel(timers, cancelled)); /* it is never delivered */

    while (received < 2) {
        check(wheeld_poll(timers, -1, events, 16, &got));
        for (size_t i = 0; i < got; i++)
            printf("cookie %" PRIu64 ", %" PRId64 " us late\n", events[i].cookie,
                   (events[i].fired_ns - events[i].deadline_ns) / 1000);
        received += got;
    }
    wheeld_close(timers);
    return 0;
}
