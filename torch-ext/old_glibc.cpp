// Keeps a CUDA build loadable beside glibc 2.28 when a newer one builds it: glibc 2.34 moved these functions into
// libc.so under a new version, and the static CUDA runtime, linked here, would ask for that. Each is wrapped
// (CMakeLists.txt gives the linker a --wrap for every MOVED below) by a jump to its old version, which every glibc has.
#ifndef __x86_64__
#error "the old versions below are those of x86-64"
#endif

#define MOVED_SINCE(name, version)                         \
  __asm__(".symver edge_ops_" #name ", " #name "@" version \
          "\n"                                             \
          ".hidden __wrap_" #name                          \
          "\n"                                             \
          ".globl __wrap_" #name                           \
          "\n"                                             \
          ".type __wrap_" #name                            \
          ", @function\n"                                  \
          "__wrap_" #name ": jmp edge_ops_" #name "@PLT\n")
#define MOVED(name) MOVED_SINCE(name, "GLIBC_2.2.5")

MOVED_SINCE(dlmopen, "GLIBC_2.3.4");
MOVED(dlclose);
MOVED(dlerror);
MOVED(dlopen);
MOVED(dlsym);
MOVED(dlvsym);
MOVED(pthread_condattr_setpshared);
MOVED(pthread_create);
MOVED(pthread_detach);
MOVED(pthread_getspecific);
MOVED(pthread_join);
MOVED(pthread_key_create);
MOVED(pthread_key_delete);
MOVED(pthread_kill);
MOVED(pthread_mutex_trylock);
MOVED(pthread_mutexattr_destroy);
MOVED(pthread_mutexattr_init);
MOVED(pthread_mutexattr_setpshared);
MOVED(pthread_mutexattr_settype);
MOVED(pthread_once);
MOVED(pthread_rwlock_destroy);
MOVED(pthread_rwlock_init);
MOVED(pthread_rwlock_rdlock);
MOVED(pthread_rwlock_timedrdlock);
MOVED(pthread_rwlock_timedwrlock);
MOVED(pthread_rwlock_tryrdlock);
MOVED(pthread_rwlock_trywrlock);
MOVED(pthread_rwlock_unlock);
MOVED(pthread_rwlock_wrlock);
MOVED(pthread_rwlockattr_destroy);
MOVED(pthread_rwlockattr_init);
MOVED(pthread_rwlockattr_setpshared);
MOVED(pthread_setspecific);
MOVED(pthread_spin_destroy);
MOVED(pthread_spin_init);
MOVED(pthread_spin_lock);
MOVED(pthread_spin_trylock);
MOVED(pthread_spin_unlock);
MOVED(sem_destroy);
MOVED(sem_init);
MOVED(sem_post);
MOVED(sem_timedwait);
MOVED(sem_trywait);
MOVED(sem_wait);
MOVED(shm_open);
MOVED(shm_unlink);
