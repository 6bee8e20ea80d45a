// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/pipeline/stage_link.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"
#include "tessera/comm/message_channels.h"
#include "tessera/comm/transports/shapes.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/meta_device.h"
#include "tessera/ops/op_log.h"
#include "tessera/parallel/block_errors.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {
namespace {

/// Message channels: two for every part, for flows and for gradients.
constexpr int kFlow = 0x70000000;
constexpr int kGradient = 0x71000000;

const mesh::AxisSet kColumn = {mesh::Axis::Pp};

at::Tensor meta_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kMeta));
}

std::string key_of(const nn::Batch& batch) {
  std::string key = fmt::format("{}", batch.size());
  for (const auto& [name, tensor] : batch.tensors())
    key += fmt::format(
        ";{} {} {}", name, static_cast<int>(tensor.scalar_type()), fmt::join(tensor.sizes(), ","));
  return key;
}

}  // namespace

StageLink::StageLink(comm::World& world,
                     nn::Model model,
                     StageLayout layout,
                     DType working,
                     const nn::TensorParallel* tensor,
                     bool scatter_gather)
    : world_(world),
      model_(std::move(model)),
      layout_(std::move(layout)),
      working_(working),
      // On a grid, and if tokens are split, every rank has a different flow.
      scatter_gather_(scatter_gather && tensor != nullptr && !tensor->on_grid() &&
                      !tensor->sequence) {
  if (tensor != nullptr) tensor_ = *tensor;
  open_channels();
}

/// Prepares the channels of this rank's stage where the transport can.
void StageLink::open_channels() {
  auto* const transport = dynamic_cast<comm::MessageChannels*>(&world_.transport());
  if (transport == nullptr) return;
  std::vector<comm::MessageChannel> channels;
  for (int part = 1; part < layout_.parts(); ++part) {
    const int before = rank_of_part(part - 1), here = rank_of_part(part);
    channels.push_back({before, here, kFlow + part});
    channels.push_back({here, before, kGradient + part});
  }
  transport->open_channels(channels, TESSERA_HERE("channels of a pipeline"));
}

StageLink::~StageLink() = default;

int StageLink::rank_of_part(int part) const {
  return world_.group(kColumn).ranks[static_cast<std::size_t>(layout_.stage_of_part(part))];
}

int StageLink::shares_of(const at::Tensor& tensor) const {
  constexpr std::int64_t kLeast = 256;  // minimum elements of a share
  if (!scatter_gather_) return 1;
  const int ranks = tensor_->group->size();
  return tensor.numel() % ranks == 0 && tensor.numel() >= kLeast * ranks ? ranks : 1;
}

/// A copy is sent, so that this rank is done as soon as the send is posted.
void StageLink::send(int rank, int channel, const at::Tensor& tensor, const std::string& what) {
  if (tensor.numel() == 0) return;
  const at::Tensor whole = tensor.contiguous();
  const auto count = static_cast<std::size_t>(whole.numel() / shares_of(whole));
  const std::size_t begin =
      count < span_of(whole).count ? count * static_cast<std::size_t>(tensor_->group->index) : 0;
  world_.transport()
      .send(rank, channel, span_of(whole).part(begin, count), TESSERA_HERE(what))
      ->wait();
}

/// Posts receives for tensors of the flow's shapes; the flow may have meta tensors.
void StageLink::post(Incoming& incoming, int rank, int channel) {
  for (const auto* tensors : {&incoming.flow_.diff, &incoming.flow_.fixed}) {
    for (const at::Tensor& like : *tensors) {
      Incoming::Message message;
      message.whole = at::empty(like.sizes(), like.options().device(device_of(world_)));
      const int shares = shares_of(message.whole);
      if (shares > 1)
        message.share = at::empty({message.whole.numel() / shares}, message.whole.options());
      const at::Tensor& into = shares > 1 ? message.share : message.whole;
      if (into.numel() > 0)
        message.work =
            world_.transport().recv(rank, channel, span_of(into), TESSERA_HERE(incoming.what_));
      incoming.messages_.push_back(std::move(message));
    }
  }
}

nn::Flow StageLink::take_flow(Incoming incoming) {
  auto message = incoming.messages_.begin();
  for (auto* tensors : {&incoming.flow_.diff, &incoming.flow_.fixed}) {
    for (at::Tensor& tensor : *tensors) {
      if (message->work) message->work->wait();
      if (message->share.defined()) {
        const auto work = world_.transport().all_gather(*tensor_->group,
                                                        span_of(message->share),
                                                        span_of(message->whole),
                                                        TESSERA_HERE(incoming.what_));
        work->wait();
        work->wait_reusable();
      }
      tensor = message->whole;
      ++message;
    }
  }
  return std::move(incoming.flow_);
}

std::vector<at::Tensor> StageLink::take_gradient(Incoming incoming) {
  return take_flow(std::move(incoming)).diff;
}

void StageLink::send_flow(int part, const nn::Flow& flow) {
  const std::string what = fmt::format("flow into part {}", part);
  for (const auto* tensors : {&flow.diff, &flow.fixed}) {
    for (const at::Tensor& tensor : *tensors)
      send(rank_of_part(part), kFlow + part, tensor.detach(), what);
  }
}

StageLink::Incoming StageLink::post_flow(int part,
                                         const nn::Batch& batch,
                                         const nn::StepContext& context) {
  Incoming out;
  out.what_ = fmt::format("flow into part {}", part);
  out.flow_ = shape_of(part, batch, context);
  post(out, rank_of_part(part - 1), kFlow + part);
  return out;
}

void StageLink::send_gradient(int part,
                              const std::vector<at::Tensor>& gradients,
                              const std::vector<at::Tensor>& like) {
  const std::string what = fmt::format("gradient out of part {}", part);
  for (std::size_t i = 0; i < like.size(); ++i) {
    const bool there = i < gradients.size() && gradients[i].defined();
    const at::Tensor gradient =
        there ? gradients[i].to(like[i].scalar_type())
              : at::zeros(like[i].sizes(), like[i].options().device(device_of(world_)));
    send(rank_of_part(part - 1), kGradient + part, gradient, what);
  }
}

StageLink::Incoming StageLink::post_gradient(int part, const std::vector<at::Tensor>& like) {
  Incoming out;
  out.what_ = fmt::format("gradient out of part {}", part);
  out.flow_.diff = like;
  post(out, rank_of_part(part), kGradient + part);
  return out;
}

at::Tensor StageLink::from_objective(const at::Tensor& mine, std::int64_t numel) {
  const comm::Group& column = world_.group(kColumn);
  const int root = layout_.stage_of_part(layout_.parts() - 1);
  at::Tensor out = column.index == root
                       ? mine.to(at::kFloat).contiguous().clone()
                       : at::empty({numel}, at::device(device_of(world_)).dtype(at::kFloat));
  TESSERA_ASSERT(out.numel() == numel);
  const auto work = world_.transport().broadcast(
      column, span_of(out), root, TESSERA_HERE("what the objective gave"));
  work->wait();
  work->wait_reusable();
  return out;
}

const nn::Flow& StageLink::shape_of(int part,
                                    const nn::Batch& batch,
                                    const nn::StepContext& context) {
  std::vector<nn::Flow>& flows =
      known_[key_of(batch) + (context.cuts_tokens() ? ";cut" : "") +
             (context.shares_tokens() ? ";shared" : "") + (context.training() ? ";training" : "")];
  if (flows.empty()) flows = run_on_meta(batch, context);
  return flows.at(static_cast<std::size_t>(part));
}

/// The output flow of a block, computed by an instance that is made on the meta device for this
/// call and destroyed.
nn::Flow StageLink::probe(const nn::BlockSpec& spec,
                          nn::Flow flow,
                          const nn::Batch& meta,
                          const nn::StepContext& of_run,
                          comm::World& shapes) {
  // One context per block: a block's state is found by its address, which the next block may reuse.
  // In training, layers with experts also pass on the sums of a term of the loss.
  nn::StepContext context(of_run.training() ? nn::Mode::Train : nn::Mode::Eval, 0);
  context.batch = &meta;
  context.block_name = spec.name;
  // What the block exchanges with other ranks is posted to a world that transfers nothing.
  std::optional<nn::TensorParallel> tensor = tensor_;
  if (tensor) {
    tensor->world = &shapes;
    tensor->group = &shapes.group(mesh::AxisSet::tp());
    tensor->sequence = of_run.cuts_tokens();
    context.tensor = &*tensor;
  }
  nn::ContextParallel shared;
  if (of_run.shares_tokens()) {
    shared = {&shapes, &shapes.group({mesh::Axis::Cp}), of_run.context_parallel->mode};
    context.context_parallel = &shared;
  }
  const std::unique_ptr<nn::Block> block = spec.make();
  nn::Params params(spec.name);
  block->declare(params);
  for (const auto& param : params.list()) {
    nn::place(*param, tensor ? &*tensor : nullptr, /*experts=*/nullptr);
    param->attach(at::empty(param->info().local_shape(),
                            at::TensorOptions().dtype(to_torch(working_)).device(at::kMeta)));
  }
  return block->forward(std::move(flow), meta, context).flow;
}

/// The last part of this stage whose flow comes from another stage.
int StageLink::last_received() const {
  const int stage = world_.group(kColumn).index;
  int part = layout_.parts() - 1;
  while (part > 0 &&
         (layout_.stage_of_part(part) != stage || layout_.stage_of_part(part - 1) == stage))
    --part;
  return part;
}

/// The input flow of every part, up to the last one that is needed. Blocks are pure and their flows
/// follow from the batch, and from whether it is trained.
std::vector<nn::Flow> StageLink::run_on_meta(const nn::Batch& batch,
                                             const nn::StepContext& of_run) {
  const c10::NoGradGuard no_grad;
  const ops::ScopedOpLog not_logged{{}};  // these operations are not part of the step
  const ops::ScopedMetaDevice device(device_of(world_));
  const auto last =
      static_cast<std::size_t>(layout_.bounds[static_cast<std::size_t>(last_received())]);
  const std::unique_ptr<comm::World> shapes = comm::shape_world(world_.mesh(), world_.rank());
  nn::Batch meta;
  meta.sample_ids = batch.sample_ids;
  for (const auto& [name, tensor] : batch.tensors())
    meta.set(name, meta_like(tensor));
  std::vector<nn::Flow> flows(1);
  nn::Flow flow;
  for (std::size_t b = 0; b < last; ++b) {
    try {
      flow = probe(model_.blocks[b], std::move(flow), meta, of_run, *shapes);
    } catch (const c10::Error& error) {
      throw Error(
          Error::Kind::Unsupported,
          fmt::format("block {} cannot predict the shape of its output: its forward does not run "
                      "on the meta device: {}",
                      model_.blocks[b].name,
                      error.what_without_backtrace()),
          "use operations that have meta kernels, or train without a pipeline");
    } catch (...) {
      rethrow_in_block(model_.blocks[b].name, "forward");
    }
    if (static_cast<std::size_t>(layout_.bounds[flows.size()]) == b + 1) flows.push_back(flow);
  }
  return flows;
}

}  // namespace tessera::parallel
