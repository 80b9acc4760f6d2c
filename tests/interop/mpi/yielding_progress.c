// Preloaded under MPICH by mpi4py_tests.sh, with the door and without it. Debian's MPICH never gives up its core while it
// waits, so with more ranks than cores each of its calls lasts some time slices of 4 ms; its waits go through UCX, where
// this gives the core away whenever there was nothing to do. What is called and what comes of it stay the same.
// Linked with libucp: in a program that opens its MPI late, as Python does, RTLD_NEXT would not find it otherwise.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>

unsigned ucp_worker_progress(void* worker);

unsigned ucp_worker_progress(void* worker) {
  static unsigned (*progress)(void*);
  if (!progress) *(void**)&progress = dlsym(RTLD_NEXT, "ucp_worker_progress");
  const unsigned events = progress(worker);
  if (!events) sched_yield();
  return events;
}
