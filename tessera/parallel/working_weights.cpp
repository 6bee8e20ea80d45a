// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/working_weights.h"

#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/byte_codes.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {
namespace {

/// Creates a tensor on the world's device whose storage has no memory yet.
at::Tensor hollow(std::int64_t numel, DType dtype, comm::World& world) {
  static std::byte nothing;
  const c10::Device device = device_of(world);
  const auto options = at::device(device).dtype(to_torch(dtype));
  at::Tensor tensor = at::from_blob(
      &nothing, {numel}, [](void*) {}, options, device);
  tensor.storage().set_data_ptr_noswap(at::DataPtr(nullptr, device));
  return tensor;
}

}  // namespace

WorkingWeights::WorkingWeights(comm::World& world,
                               const GroupRanks& ranks,
                               const FlatLayout& layout,
                               DType dtype,
                               Residency residency,
                               PackingOptions packing,
                               GatherForm form)
    : name_(layout.name()),
      world_(&world),
      group_(ranks.fold),
      replicas_(ranks.copies),
      dtype_(dtype),
      residency_(ranks.fold->size() == 1 && residency != Residency::Packed ? Residency::Replicated
                                                                           : residency),
      form_(sharded() ? form : GatherForm::Values) {
  if (residency_ == Residency::Packed) {
    TESSERA_REQUIRE(
        device_of(world).is_cpu(),
        Unsupported,
        "weights in four or eight bits are memory of the host only, and the model is on "
        "a device",
        "remove adapter.quantize_base");
    packed_ = std::make_unique<PackedWeights>(layout, packing);
    whole_ = hollow(layout.numel(), dtype, world);
    return;
  }
  const std::int64_t part = layout.shard_numel();
  if (sharded()) {
    group_ = ranks.inner;
    whole_ = hollow(layout.numel(), dtype, world);
    const std::int64_t kept = part * replicas_->size();
    const auto shared = [&](std::int64_t numel, DType of) {
      return world.transport().allocate(static_cast<std::size_t>(numel) * size_of(of),
                                        memory::Tag::Parameters);
    };
    if (form_ == GatherForm::Int8) {
      TESSERA_REQUIRE(
          device_of(world).is_cpu(),
          Unsupported,
          "weights travel in 8 bits between the memories of hosts only, and the model is "
          "on a device",
          "set zero_optimization.zero_quantized_weights to false");
      const memory::ScopedTag tag(memory::Tag::Parameters);
      own_ = at::zeros({part}, whole_.options());
      region_ = shared(byte_codes(part) * replicas_->size(), DType::U8);
      kept_codes_ = tensor_over(region_, byte_codes(part) * replicas_->size(), DType::U8);
      return;
    }
    region_ = shared(kept, dtype);
    kept_ = tensor_over(region_, kept, dtype);
    own_ = kept_.narrow(0, replicas_->index * part, part);
    return;
  }
  region_ = world.transport().allocate(static_cast<std::size_t>(layout.numel()) * size_of(dtype),
                                       memory::Tag::Parameters);
  whole_ = tensor_over(region_, layout.numel(), dtype);
  own_ = residency_ == Residency::Replicated
             ? whole_
             : whole_.narrow(0, layout.shard_begin(ranks.fold->index), part);
  gathered_ = true;
}

WorkingWeights::WorkingWeights(const WorkingWeights& lender, Borrowed /*how*/)
    : name_(lender.name_),
      world_(lender.world_),
      group_(lender.group_),
      replicas_(lender.replicas_),
      dtype_(lender.dtype_),
      residency_(lender.residency_),
      region_(lender.region_),
      own_(lender.own_),
      kept_(lender.kept_),
      form_(lender.form_),
      kept_codes_(lender.kept_codes_),
      gathered_(!lender.sharded()) {
  TESSERA_ASSERT(residency_ != Residency::Packed);
  whole_ = sharded() ? hollow(lender.whole_.numel(), dtype_, *world_) : lender.whole_;
}

WorkingWeights WorkingWeights::borrowed_from(const WorkingWeights& lender) {
  return {lender, Borrowed()};
}

WorkingWeights::~WorkingWeights() = default;
WorkingWeights::WorkingWeights(WorkingWeights&&) noexcept = default;

void WorkingWeights::post() {
  if (gathered_) return;
  if (comes_and_goes()) {
    settle();
    const memory::ScopedTag tag(memory::Tag::Parameters);
    const at::Tensor memory = at::empty({whole_.numel()}, whole_.options());
    at::DataPtr data(
        memory.mutable_data_ptr(),
        new at::Tensor(memory),
        [](void* owner) { delete static_cast<at::Tensor*>(owner); },
        whole_.device());
    whole_.storage().set_data_ptr_noswap(std::move(data));
  }
  gathered_ = true;
  if (packed_) return packed_->unpack(whole_);
  for (const comm::WorkPtr& work : works_)
    work->wait_reusable();
  works_.clear();
  form_ == GatherForm::Int8 ? gather_codes() : gather_values();
}

void WorkingWeights::gather_values() {
  // The parts of one replica's ranks are adjacent, because ranks along dp.shard are neighbours.
  const std::int64_t parts = sharded() ? replicas_->size() : 1;
  const std::int64_t part = own_.numel(), row = whole_.numel() / parts;
  for (std::int64_t p = 0; p < parts; ++p) {
    works_.push_back(
        world_->transport().all_gather(*group_,
                                       span_of(sharded() ? kept_.narrow(0, p * part, part) : own_),
                                       span_of(whole_.narrow(0, p * row, row)),
                                       TESSERA_HERE(fmt::format("gather weights of {}", name_))));
  }
}

void WorkingWeights::gather_codes() {
  const memory::ScopedTag tag(memory::Tag::Parameters);
  const std::int64_t parts = replicas_->size(), part = byte_codes(own_.numel());
  const std::int64_t row = part * group_->size();
  gathered_codes_ = at::empty({row * parts}, whole_.options().dtype(at::kByte));
  for (std::int64_t p = 0; p < parts; ++p) {
    works_.push_back(
        world_->transport().all_gather(*group_,
                                       span_of(kept_codes_.narrow(0, p * part, part)),
                                       span_of(gathered_codes_.narrow(0, p * row, row)),
                                       TESSERA_HERE(fmt::format("gather weights of {}", name_))));
  }
}

void WorkingWeights::decode() {
  const c10::NoGradGuard no_grad;
  const at::Tensor all = std::exchange(gathered_codes_, at::Tensor());
  // A tensor of its own over the memory of whole(): autograd must not count this as a change.
  const at::Tensor out = whole_.detach();
  const std::int64_t part = own_.numel(), bytes = byte_codes(part);
  for (std::int64_t i = 0; i < out.numel() / part; ++i)
    decode_bytes(all.narrow(0, i * bytes, bytes), out.narrow(0, i * part, part));
}

void WorkingWeights::wait() {
  post();
  for (const comm::WorkPtr& work : works_)
    work->wait();
  if (gathered_codes_.defined()) decode();
}

void WorkingWeights::release() {
  if (!comes_and_goes() || !gathered_) return;
  wait();
  whole_.storage().set_data_ptr_noswap(at::DataPtr(nullptr, whole_.device()));
  gathered_ = false;
}

void WorkingWeights::begin_write() {
  if (residency_ == Residency::Replicated) return;
  release();
  for (comm::WorkPtr& work : spread_)
    works_.push_back(std::move(work));
  spread_.clear();
  for (const comm::WorkPtr& work : works_) {
    work->wait();
    work->wait_reusable();
  }
  works_.clear();
  gathered_ = false;
}

void WorkingWeights::written() {
  if (packed_) return;
  if (!sharded()) return post();
  const auto spread = [&](const at::Tensor& own, const at::Tensor& kept) {
    spread_.push_back(
        world_->transport().all_gather(*replicas_,
                                       span_of(own),
                                       span_of(kept),
                                       TESSERA_HERE(fmt::format("spread weights of {}", name_))));
  };
  const bool several = replicas_->size() > 1;
  if (form_ == GatherForm::Values) {
    if (several) spread(own_, kept_);
    return;
  }
  const std::int64_t part = byte_codes(own_.numel());
  const at::Tensor mine = kept_codes_.narrow(0, replicas_->index * part, part);
  encode_bytes(own_, mine);
  if (several) spread(mine, kept_codes_);
}

void WorkingWeights::forget() {
  TESSERA_ASSERT(!comes_and_goes() && works_.empty());
  whole_ = own_ = at::Tensor();
  region_.reset();
}

void WorkingWeights::settle() {
  for (const comm::WorkPtr& work : spread_)
    work->wait();
  if (!comes_and_goes()) wait();
}

}  // namespace tessera::parallel
