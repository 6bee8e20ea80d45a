// SPDX-License-Identifier: Apache-2.0
// Contents of the files of streamed data that are in memory.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

namespace tessera::data {

/// Keeps the contents of the files that were used last. All methods can be called from any thread;
/// a thread waits while another one reads a file.
template <class Contents>
class HeldFiles {
 public:
  /// Returns the contents of a file, which `read` returns as a std::shared_ptr<const Contents> if
  /// they are not in memory. Before it reads, it lets go of all but the `most` - 1 files used last.
  template <class Read>
  std::shared_ptr<const Contents> get(std::size_t file, std::size_t most, Read read) {
    const std::scoped_lock lock(mutex_);
    for (auto one = held_.begin(); one != held_.end(); ++one) {
      if (one->first != file) continue;
      held_.splice(held_.begin(), held_, one);
      return held_.front().second;
    }
    while (!held_.empty() && held_.size() >= most)
      held_.pop_back();
    held_.emplace_front(file, read());
    return held_.front().second;
  }

 private:
  std::mutex mutex_;
  /// The last used one is first.
  std::list<std::pair<std::size_t, std::shared_ptr<const Contents>>> held_;
};

}  // namespace tessera::data
