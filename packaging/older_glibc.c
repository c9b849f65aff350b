// What GCC 12's libstdc++ asks of a C library younger than 2.28, for wheels (older-glibc). Hidden: each library of a wheel holds its own.
#include <pthread.h>
#include <stdint.h>
#include <sys/random.h>
#include <time.h>

// glibc 2.32. False, as it is in a process with threads: counts of shared pointers are then atomic.
char __libc_single_threaded;

// glibc 2.30. The wall clock replaces any other: a wait that the clock is set during may be shorter or longer, as before 2.30.
int pthread_cond_clockwait(
    pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until) {
  struct timespec now, wall;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &wall);
  wall.tv_sec += until->tv_sec - now.tv_sec;
  wall.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (wall.tv_nsec < 0) {
    wall.tv_nsec += 1000000000;
    --wall.tv_sec;
  } else if (wall.tv_nsec >= 1000000000) {
    wall.tv_nsec -= 1000000000;
    ++wall.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &wall);
}

// glibc 2.36.
uint32_t arc4random(void) {
  uint32_t bits;
  while (getrandom(&bits, sizeof bits, 0) != sizeof bits) {
  }
  return bits;
}
