// SPDX-License-Identifier: Apache-2.0
// Bytes outside of working memory, which are read in parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace tessera {

/// The bytes do not change while the object lives. Threads: any, one call at a time.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  [[nodiscard]] virtual std::uint64_t size() const = 0;
  /// Fills `out` with the bytes from `begin` on. Throws Error{Io} if they cannot be read.
  virtual void read(std::uint64_t begin, std::span<std::byte> out) const = 0;
};

/// A range of another source.
class ByteRange final : public ByteSource {
 public:
  ByteRange(std::shared_ptr<const ByteSource> of, std::uint64_t begin, std::uint64_t size)
      : of_(std::move(of)), begin_(begin), size_(size) {}
  [[nodiscard]] std::uint64_t size() const override { return size_; }
  void read(std::uint64_t begin, std::span<std::byte> out) const override {
    of_->read(begin_ + begin, out);
  }

 private:
  std::shared_ptr<const ByteSource> of_;
  std::uint64_t begin_, size_;
};

}  // namespace tessera
