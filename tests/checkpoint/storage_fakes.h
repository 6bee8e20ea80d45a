// SPDX-License-Identifier: Apache-2.0
// Disks that tests can observe and make fail.
#pragma once

#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint::test {

namespace fs = std::filesystem;

/// A real disk that calls `before(operation, path)` before every change. Threads: `before` runs
/// under a lock.
class WatchedStorage final : public Storage {
 public:
  using Before = std::function<void(const std::string& operation, const fs::path& path)>;
  explicit WatchedStorage(Before before = nullptr, bool can_exchange = true)
      : before_(std::move(before)), can_exchange_(can_exchange) {}

  void make_folder(const fs::path& path) override {
    tell("make folder", path);
    real_storage().make_folder(path);
  }
  std::unique_ptr<Output> create(const fs::path& path, std::uint64_t bytes) override {
    tell("create", path);
    return std::make_unique<WatchedOutput>(*this, path, real_storage().create(path, bytes));
  }
  void sync_folder(const fs::path& path) override { tell("sync folder", path); }
  void rename(const fs::path& from, const fs::path& to) override {
    tell("rename", to);
    real_storage().rename(from, to);
  }
  bool exchange(const fs::path& a, const fs::path& b) override {
    if (!can_exchange_) return false;
    tell("exchange", b);
    return real_storage().exchange(a, b);
  }
  /// Removes file by file, so that a removal can stop half-way.
  void remove(const fs::path& path) override {
    if (fs::is_directory(path)) {
      std::vector<fs::path> inside;
      for (const auto& entry : fs::directory_iterator(path))
        inside.push_back(entry.path());
      for (const auto& file : inside)
        remove(file);
    }
    tell("remove", path);
    real_storage().remove(path);
  }
  void write_atomic(const fs::path& path, std::string_view content) override {
    tell("write", path);
    fs::remove(path);
    std::ofstream(path) << content;
  }

 private:
  class WatchedOutput final : public Output {
   public:
    WatchedOutput(WatchedStorage& disk, fs::path path, std::unique_ptr<Output> real)
        : disk_(disk), path_(std::move(path)), real_(std::move(real)) {}
    /// Writes in two halves, so that a write can stop half-way.
    void append(std::span<const std::byte> bytes) override {
      disk_.tell("append", path_);
      real_->append(bytes.first(bytes.size() / 2));
      disk_.tell("append", path_);
      real_->append(bytes.subspan(bytes.size() / 2));
    }
    void sync() override { disk_.tell("sync", path_); }

   private:
    WatchedStorage& disk_;
    fs::path path_;
    std::unique_ptr<Output> real_;
  };

  void tell(const std::string& operation, const fs::path& path) {
    const std::lock_guard lock(mutex_);
    if (before_) before_(operation, path);
  }

  Before before_;
  bool can_exchange_;
  std::mutex mutex_;
};

}  // namespace tessera::checkpoint::test
