// SPDX-License-Identifier: Apache-2.0
// std::condition_variable::wait() for a libstdc++ older than the compiler's.
//
// GCC 12 gave this function a new symbol (GLIBCXX_3.4.30), the only one that the library would need
// of a libstdc++ newer than GCC 11's, which systems with glibc 2.34 have. The link of libtessera.so
// replaces it by this definition (tessera/CMakeLists.txt).
#include <condition_variable>
#include <mutex>

#include <pthread.h>

/// The arguments are those of the member function: `this` and its parameter.
extern "C" void tessera_condition_variable_wait(std::condition_variable* self,
                                                std::unique_lock<std::mutex>* lock);

extern "C" __attribute__((visibility("hidden"))) void tessera_condition_variable_wait(
    std::condition_variable* self, std::unique_lock<std::mutex>* lock) {
  // Errors are bugs of the caller, as in libstdc++.
  static_cast<void>(pthread_cond_wait(self->native_handle(), lock->mutex()->native_handle()));
}
