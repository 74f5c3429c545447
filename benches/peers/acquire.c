/* The programs of `dml bench acquire` for StarPU: nothing is copied, and no kernel computes.
 *
 * Prints lines of a name, the nanoseconds per operation by default, and those on the barest path: a try, without
 * sequential consistency. A name and units are those of the JSON of `dml bench acquire`. */
#include <pthread.h>
#include <starpu.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BYTES = 64, BATCH = 8, FEW = 10, MANY = 1 << 16 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void check(int result, const char *what) {
    if (result != 0) {
        fprintf(stderr, "%s failed: %d\n", what, result);
        exit(1);
    }
}

static long resident_bytes(void) {
    char line[256];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "RssAnon: %ld", &kib);
    if (status) fclose(status);
    return kib * 1024;
}

static void pair(pthread_mutex_t *mutex, starpu_data_handle_t *handle, enum starpu_data_access_mode mode, int barest) {
    if (mutex) {
        pthread_mutex_lock(mutex);
        pthread_mutex_unlock(mutex);
    } else if (barest) {
        while (starpu_data_acquire_on_node_try(*handle, STARPU_MAIN_RAM, mode) != 0) {}
        starpu_data_release_on_node(*handle, STARPU_MAIN_RAM);
    } else {
        check(starpu_data_acquire(*handle, mode), "starpu_data_acquire");
        starpu_data_release(*handle);
    }
}

struct job {
    pthread_mutex_t *mutex;
    starpu_data_handle_t *handle;
    enum starpu_data_access_mode mode;
    int barest;
    long operations;
    pthread_barrier_t *begin;
    double ns;
};

static void *work(void *arg) {
    struct job *job = arg;
    if (job->begin) pthread_barrier_wait(job->begin);
    double begun = now();
    for (long i = 0; i < job->operations; i++) pair(job->mutex, job->handle, job->mode, job->barest);
    job->ns = (now() - begun) / job->operations;
    return NULL;
}

static double one(starpu_data_handle_t *handle, enum starpu_data_access_mode mode, int barest, long operations) {
    struct job job = {NULL, handle, mode, barest, operations, NULL, 0};
    work(&job);
    return job.ns;
}

static double two(starpu_data_handle_t *a, starpu_data_handle_t *b, enum starpu_data_access_mode mode, int barest, long operations) {
    pthread_barrier_t begin;
    pthread_barrier_init(&begin, NULL, 2);
    struct job jobs[2] = {{NULL, a, mode, barest, operations, &begin, 0}, {NULL, b, mode, barest, operations, &begin, 0}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, work, &jobs[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return (jobs[0].ns + jobs[1].ns) / 2;
}

static void nothing(void *buffers[], void *arg) {
    (void)buffers;
    (void)arg;
}

static void create(starpu_data_handle_t *handle, void *bytes) {
    starpu_variable_data_register(handle, STARPU_MAIN_RAM, (uintptr_t)bytes, BYTES);
}

int main(int argc, char **argv) {
    long n = argc > 1 ? atol(argv[1]) : 100000;
    struct starpu_conf conf;
    starpu_conf_init(&conf);
    conf.ncpus = 1;
    conf.ncuda = conf.nopencl = 0;
    check(starpu_init(&conf), "starpu_init");
    starpu_pause(); /* its workers poll, on cores that the threads here need */

    static char bytes[FEW][BYTES];
    starpu_data_handle_t *many = malloc(MANY * sizeof *many);
    char *contents = malloc((size_t)MANY * BYTES);
    for (size_t i = 0; i < (size_t)MANY * BYTES; i++) contents[i] = (char)i;
    for (int i = 0; i < MANY; i++) many[i] = NULL;
    long before = resident_bytes();
    for (int i = 0; i < MANY; i++) create(&many[i], contents + (size_t)i * BYTES);
    double handle_bytes = (double)(resident_bytes() - before) / MANY;

    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    struct job job = {&mutex, NULL, STARPU_R, 0, 10 * n, NULL, 0};
    work(&job);
    printf("mutex_pair_ns %f -\n", job.ns);

    starpu_data_handle_t some[2][FEW];
    for (int barest = 0; barest < 2; barest++)
        for (int i = 0; i < FEW; i++) {
            create(&some[barest][i], bytes[i]);
            starpu_data_set_sequential_consistency_flag(some[barest][i], !barest);
        }
    struct { const char *name; enum starpu_data_access_mode mode; } modes[] = {
        {"read", STARPU_R}, {"read_write", STARPU_RW}, {"write", STARPU_W}};
    for (int i = 0; i < 3; i++) {
        printf("%s %f", modes[i].name, one(&some[0][0], modes[i].mode, 0, n));
        printf(" %f\n", one(&some[1][0], modes[i].mode, 1, n));
    }
    double ten[2];
    for (int barest = 0; barest < 2; barest++) {
        double begun = now();
        for (long i = 0; i < n / FEW; i++) {
            for (int h = 0; h < FEW; h++) {
                if (barest) while (starpu_data_acquire_on_node_try(some[1][h], STARPU_MAIN_RAM, STARPU_R) != 0) {}
                else check(starpu_data_acquire(some[0][h], STARPU_R), "starpu_data_acquire");
            }
            for (int h = 0; h < FEW; h++) {
                if (barest) starpu_data_release_on_node(some[1][h], STARPU_MAIN_RAM);
                else starpu_data_release(some[0][h]);
            }
        }
        ten[barest] = (now() - begun) / (n / FEW);
    }
    printf("ten_buffers_ns %f %f\n", ten[0], ten[1]);
    printf("different_buffers %f", two(&some[0][0], &some[0][5], STARPU_R, 0, n));
    printf(" %f\n", two(&some[1][0], &some[1][5], STARPU_R, 1, n));
    printf("same_buffer_read %f", two(&some[0][0], &some[0][0], STARPU_R, 0, n));
    printf(" %f\n", two(&some[1][0], &some[1][0], STARPU_R, 1, n));
    printf("same_buffer_write %f", two(&some[0][0], &some[0][0], STARPU_W, 0, n / 10));
    printf(" %f\n", two(&some[1][0], &some[1][0], STARPU_W, 1, n / 10));

    double begun = now();
    for (long i = 0; i < n / 10; i++) {
        starpu_data_handle_t handle;
        create(&handle, bytes[0]);
        starpu_data_unregister(handle);
    }
    printf("new_buffer_ns %f -\n", (now() - begun) / (n / 10));

    /* The time of the submitting thread alone, in batches, as `dml bench acquire` measures it. */
    starpu_resume();
    struct starpu_codelet codelet = {.cpu_funcs = {nothing}, .nbuffers = 2, .modes = {STARPU_R, STARPU_RW}};
    double submitting = 0;
    for (long i = 0; i < n / 100; i++) {
        begun = now();
        for (int b = 0; b < BATCH; b++)
            check(starpu_task_insert(&codelet, STARPU_R, some[0][0], STARPU_RW, some[0][1], 0), "starpu_task_insert");
        submitting += now() - begun;
        starpu_task_wait_for_all();
    }
    printf("submit_ns %f -\n", submitting / (n / 100) / BATCH);
    printf("buffer_bytes %f -\n", handle_bytes);
    return 0;
}
