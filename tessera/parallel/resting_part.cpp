// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/resting_part.h"

#include <array>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/parallel/working_weights.h"
#include "tessera/tensor/dtype.h"

namespace tessera::parallel {

RestingPart::RestingPart(RestingPlace place, at::Tensor own, const std::string& what)
    : place_(std::move(place)), own_(std::move(own)) {
  TESSERA_ASSERT(place_.buffers != nullptr && own_.is_cpu());
  place_.buffers->set_units(
      place_.unit, std::array{static_cast<std::int64_t>(own_.nbytes())}, what);
}

void RestingPart::fetch() {
  if (holds_ == 0) place_.buffers->fetch(place_.unit);
}

void RestingPart::hold() {
  if (holds_ == 0) {
    std::byte* const data = place_.buffers->acquire(place_.unit).data();
    own_.storage().set_data_ptr_noswap(at::DataPtr(data, own_.device()));
  }
  ++holds_;
}

void RestingPart::let_go(bool changed) {
  TESSERA_ASSERT(holds_ > 0);
  changed_ = changed_ || changed;
  if (--holds_ > 0) return;
  own_.storage().set_data_ptr_noswap(at::DataPtr(nullptr, own_.device()));
  place_.buffers->release(place_.unit, std::exchange(changed_, false));
}

void RestingPart::settle() {
  if (holds_ == 0) place_.buffers->settle(place_.unit);
}

std::shared_ptr<const ByteSource> RestingPart::snapshot() {
  TESSERA_ASSERT(holds_ == 0);
  return place_.buffers->snapshot(place_.unit);
}

HeldPart::HeldPart(const WorkingWeights& weights, bool changed)
    : part_(weights.resting()), changed_(changed) {
  if (part_ != nullptr) part_->hold();
}

HeldPart::HeldPart(HeldPart&& other) noexcept
    : part_(std::exchange(other.part_, nullptr)), changed_(other.changed_) {}

HeldPart& HeldPart::operator=(HeldPart&& other) noexcept {
  std::swap(part_, other.part_);
  std::swap(changed_, other.changed_);
  return *this;
}

void HeldPart::let_go() {
  if (RestingPart* const part = std::exchange(part_, nullptr)) part->let_go(changed_);
}

namespace {

class Widened final : public ByteSource {
 public:
  Widened(std::shared_ptr<const ByteSource> narrow, DType dtype)
      : narrow_(std::move(narrow)), dtype_(dtype) {}

  [[nodiscard]] std::uint64_t size() const override {
    return narrow_->size() / size_of(dtype_) * sizeof(float);
  }
  void read(std::uint64_t begin, std::span<std::byte> out) const override {
    // Readers may ask for parts of a value.
    const std::uint64_t first = begin / sizeof(float);
    const std::uint64_t last = (begin + out.size() + sizeof(float) - 1) / sizeof(float);
    std::vector<std::byte> bytes((last - first) * size_of(dtype_));
    narrow_->read(first * size_of(dtype_), bytes);
    const at::Tensor wide = at::from_blob(bytes.data(),
                                          {static_cast<std::int64_t>(last - first)},
                                          at::TensorOptions(to_torch(dtype_)))
                                .to(at::kFloat);
    const auto* const values = static_cast<const std::byte*>(wide.const_data_ptr());
    std::copy_n(values + (begin - first * sizeof(float)), out.size(), out.data());
  }

 private:
  std::shared_ptr<const ByteSource> narrow_;
  DType dtype_;
};

}  // namespace

std::shared_ptr<const ByteSource> widened(std::shared_ptr<const ByteSource> narrow, DType dtype) {
  if (dtype == DType::F32) return narrow;
  return std::make_shared<const Widened>(std::move(narrow), dtype);
}

}  // namespace tessera::parallel
