// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/resting_sums.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/parallel/unit_buffers.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/flat_buffer.h"

namespace tessera::parallel {
namespace {

/// One sum is used, one read and one written.
constexpr int kMostBuffers = 3;

}  // namespace

int sum_buffers(int asked, int together) {
  return together == 0 ? 0 : std::max(together, std::min(asked, kMostBuffers));
}

void SumsTogether::count(std::size_t of_class, int block, int uses) {
  most_[of_class] = std::max({most_[of_class], ++of_block_[{of_class, block}], uses});
}

std::size_t sum_class(std::int64_t bytes, std::int64_t largest) {
  constexpr std::int64_t kRatio = 4;
  std::size_t out = 0;
  for (std::int64_t bound = largest / kRatio; bytes <= bound && out + 1 < kSumClasses; ++out)
    bound /= kRatio;
  return out;
}

/// The buffers of a class. Units are numbers of sums.
struct RestingSums::Class {
  Class(memory::Tier& tier, int buffers) : units(tier, buffers, memory::Tag::Gradients) {}

  UnitBuffers units;
  std::deque<std::size_t> written;  ///< whose writes were not waited for, the oldest first
};

/// The memory of a sum while something uses it.
struct RestingSums::Hold {
  Hold(std::shared_ptr<Class> of, std::size_t number, Use use)
      : from(std::move(of)),
        sum(number),
        data(use == Use::Replace ? from->units.replace(sum).data()
                                 : from->units.acquire(sum).data()),
        changed(use != Use::Read) {
    std::erase(from->written, sum);
  }
  ~Hold() {
    from->units.release(sum, changed);
    if (changed) from->written.push_back(sum);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  std::shared_ptr<Class> from;
  std::size_t sum;
  std::byte* data;
  bool changed;
};

RestingSums::RestingSums(memory::Tier& tier, const OfSumClasses& buffers) : buffers_(buffers) {
  for (std::size_t c = 0; c < kSumClasses; ++c) {
    if (buffers[c] > 0) classes_[c] = std::make_shared<Class>(tier, buffers[c]);
  }
}

std::size_t RestingSums::add(std::size_t of_class,
                             std::int64_t numel,
                             DType dtype,
                             const std::string& what) {
  const std::int64_t bytes = numel * static_cast<std::int64_t>(size_of(dtype));
  classes_[of_class]->units.set_units(sums_.size(), std::array{bytes}, what);
  sums_.push_back({.of_class = of_class, .numel = numel, .dtype = dtype, .hold = {}});
  return sums_.size() - 1;
}

void RestingSums::fetch(std::size_t number) {
  if (!sums_[number].hold.expired()) return;
  Class& from = *classes_[sums_[number].of_class];
  for (; from.written.size() > 1; from.written.pop_front())
    from.units.settle(from.written.front());
  from.units.fetch(number);
}

at::Tensor RestingSums::hold(std::size_t number, Use use) {
  Sum& sum = sums_[number];
  std::shared_ptr<Hold> hold = sum.hold.lock();
  if (hold == nullptr) {
    hold = std::make_shared<Hold>(classes_[sum.of_class], number, use);
    sum.hold = hold;
  }
  hold->changed = hold->changed || use != Use::Read;
  std::byte* const data = hold->data;
  return at::from_blob(
      data,
      {sum.numel},
      [hold = std::move(hold)](void*) mutable { hold.reset(); },
      at::TensorOptions().dtype(to_torch(sum.dtype)));
}

void add_chunk_squares(const at::Tensor& sum, std::vector<double>& out) {
  constexpr std::int64_t kPart = 1024 * kChunk;
  for (std::int64_t at = 0; at < sum.numel(); at += kPart) {
    const at::Tensor part =
        sum.narrow(0, at, std::min(kPart, sum.numel() - at)).to(at::kFloat).contiguous();
    const std::size_t first = out.size();
    out.resize(first + static_cast<std::size_t>(chunks_of(part.numel())));
    ops::chunk_square_sums(part.const_data_ptr<float>(),
                           part.numel(),
                           kChunk,
                           out.data() + first,
                           from_torch(part.device()));
  }
}

}  // namespace tessera::parallel
