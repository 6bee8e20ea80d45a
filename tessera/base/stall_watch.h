// SPDX-License-Identifier: Apache-2.0
// Reports that this process computes nothing while it should.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace tessera {

/// While the object lives, a thread calls `tell` once if the process has used less than 1 % of a
/// processor for `after_s` seconds: it waits for a disk, a file server, or another program. `tell`
/// gets "`what` has made no progress for 30 s". Throws nothing; a thread that cannot be created
/// leaves the process without a watch. Destroy it before fork().
class StallWatch {
 public:
  StallWatch(std::string what,
             std::function<void(const std::string& text)> tell,
             double after_s = 30.0);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

 private:
  void watch();

  std::string what_;
  std::function<void(const std::string&)> tell_;
  double after_s_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace tessera
