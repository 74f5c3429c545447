/* Common code of the libraries that stand in for drivers: it counts calls, refuses them on demand, and holds
 * commands back. The including file defines the code that a call named in STAND_IN_FAILS is refused with
 * (REFUSED). */

#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, CALLS = 128 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static time_t held_until;
static struct { char name[48]; long made; int after, code, pause; } calls[CALLS];

/* A forked child may query the calls: it inherits the lock unlocked, and no waiter. */
static void before_a_fork(void) { pthread_mutex_lock(&lock); }
static void after_a_fork(void) { pthread_mutex_unlock(&lock); }
static void in_the_fork(void) {
    changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    pthread_mutex_unlock(&lock);
}
__attribute__((constructor)) static void mind_forks(void) { pthread_atfork(before_a_fork, after_a_fork, in_the_fork); }

/* Ends the process: a program has done what it must not. */
__attribute__((format(printf, 1, 2))) static void found(const char *format, ...) {
    va_list arguments;
    fputs("the driver's stand-in: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputs("\n", stderr);
    abort();
}

/* The entry of a call. */
static int entry(const char *name) {
    int index = 0;
    while (calls[index].name[0] && strcmp(calls[index].name, name)) index++;
    if (index == CALLS - 1) abort();
    strncpy(calls[index].name, name, sizeof calls[index].name - 1);
    return index;
}

/* Counts a call, and returns the code that it is to fail with. */
static int enter(const char *name) {
    int index = entry(name);
    calls[index].made++;
    if (calls[index].pause) {
        int millis = calls[index].pause;
        calls[index].pause = 0;
        pthread_mutex_unlock(&lock);
        usleep(millis * 1000);
        pthread_mutex_lock(&lock);
    }
    if (getenv("STAND_IN_FAILS") && !strcmp(getenv("STAND_IN_FAILS"), name)) return REFUSED;
    if (calls[index].code && calls[index].after-- == 0) {
        int code = calls[index].code;
        calls[index].code = 0;
        return code;
    }
    return SUCCESS;
}

#define BEGIN                                                                                                          \
    pthread_mutex_lock(&lock);                                                                                         \
    int code = enter(__func__);                                                                                        \
    if (code) goto end
#define DONE                                                                                                           \
    end:                                                                                                               \
    pthread_cond_broadcast(&changed);                                                                                  \
    pthread_mutex_unlock(&lock)
#define END DONE; return code
#define FAIL(value) do { code = (value); goto end; } while (0)

#define IS_THERE(list, thing) ({ typeof(list) at_ = (list); while (at_ && at_ != (thing)) at_ = at_->next; at_ != NULL; })
#define TAKE_OUT(list, thing) ({ typeof(&(list)) at_ = &(list); while (*at_ != (thing)) at_ = &(*at_)->next; *at_ = (thing)->next; })
#define COUNT(list, condition) ({ long n_ = 0; for (typeof(list) it = (list); it; it = it->next) n_ += (condition); n_; })

/* Sleeps until something has changed, or for a second at most: the end of a hold is not signalled. */
static void sleep_for_a_while(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    pthread_cond_timedwait(&changed, &lock, &until);
}

static int are_held(void) { return held_until > time(NULL); }

/* What a test asks and says. */

long stand_in_made(const char *call) {
    pthread_mutex_lock(&lock);
    long made = calls[entry(call)].made;
    pthread_mutex_unlock(&lock);
    return made;
}

void stand_in_fail(const char *call, int after, int code) {
    pthread_mutex_lock(&lock);
    int index = entry(call);
    calls[index].after = after;
    calls[index].code = code;
    pthread_mutex_unlock(&lock);
}

/* Lets the next such call sleep before it does anything. */
void stand_in_pause(const char *call, int millis) {
    pthread_mutex_lock(&lock);
    calls[entry(call)].pause = millis;
    pthread_mutex_unlock(&lock);
}

/* Lets no command run: for a while, so that a test that fails ends. */
void stand_in_hold(int hold) {
    pthread_mutex_lock(&lock);
    held_until = hold ? time(NULL) + 20 : 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
