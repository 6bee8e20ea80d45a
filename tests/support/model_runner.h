// SPDX-License-Identifier: Apache-2.0
// A whole model on one rank without an engine, or on several ranks that share its layers or its
// stages: fp32 weights and gradients by name, AdamW, greedy text.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "tessera/comm/world.h"
#include "tessera/nn/denominators.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/ops/sampler.h"
#include "tessera/parallel/executor.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/parallel/pipeline/stage_link.h"
#include "tessera/tensor/init.h"

namespace tessera::test {

/// input_ids and labels [B, T]; sample numbers from `first` on.
inline nn::Batch make_batch(const at::Tensor& input_ids,
                            const at::Tensor& labels = {},
                            std::int64_t first = 0) {
  nn::Batch batch;
  batch.set("input_ids", input_ids);
  if (labels.defined()) batch.set("labels", labels);
  for (std::int64_t i = 0; i < input_ids.size(0); ++i)
    batch.sample_ids.push_back(first + i);
  return batch;
}

class ModelRunner {
 public:
  using Tensors = std::map<std::string, at::Tensor>;
  using Fill =
      std::function<void(const ParamInfo&, at::Tensor out)>;  // out: fp32, 1-d, the whole parameter

  explicit ModelRunner(const nn::Model& model,
                       DType working = DType::F32,
                       comm::World* world = nullptr,
                       const parallel::StageLayout& layout = {},
                       nn::TensorMode tensor = nn::TensorMode::OneD)
      : alone_(world == nullptr ? comm::solo_world() : nullptr),
        world_(world == nullptr ? *alone_ : *world),
        instance_(model, {.working = working, .tensor = tensor}, world_, layout) {
    if (layout.stages > 1) {
      link_ = std::make_unique<parallel::StageLink>(
          world_, model, layout, working, instance_.tensor_parallel());
    }
    const nn::ParamInfos all = nn::parameters_of(model);
    has_experts_ =
        std::any_of(all.begin(), all.end(), [](const auto& info) { return info->stacked(); });
    for (int b = 0; b < instance_.num_blocks(); ++b) {
      if (layout.stage_of_block(b) != instance_.stage()) continue;
      for (const auto& param : instance_.params(b))
        infos[param->info().name] = param->shared_info();
    }
  }

  /// The part of a whole parameter that this rank holds.
  static at::Tensor held(const ParamInfo& info, const at::Tensor& whole) {
    const mesh::Box box = info.held();
    at::Tensor part = whole;
    for (std::size_t d = 0; d < box.begin.size(); ++d)
      part = part.narrow(static_cast<std::int64_t>(d), box.begin[d], box.end[d] - box.begin[d]);
    return part;
  }

  void fill(const Fill& fill) {
    for (const auto& [name, info] : infos) {
      weights[name] = at::zeros(info->shape, at::kFloat);
      fill(*info, weights[name].view({-1}));
    }
    write_working();
  }
  void initialize(std::uint64_t seed) {
    fill([seed](const ParamInfo& info, at::Tensor out) {
      initialize_range(info, seed, 0, std::move(out));
    });
  }

  /// Forward and backward over all of `batch`: the mean loss; gradients in `grads`.
  double train(const nn::Batch& batch, std::uint64_t seed = 1) {
    grads.clear();
    Collector collector(*this);
    parallel::Executor executor(instance_, {&collector}, {}, link_.get());
    const parallel::StepInput input{.seed = seed,
                                    .load = [&](int) { return batch; },
                                    .global_denominators =
                                        [&](const auto& counts) {
                                          std::vector<double> all = counts.at(0);
                                          if (!has_experts_) return all;
                                          const std::vector<double> common =
                                              nn::common_denominators(batch, nullptr);
                                          all.insert(all.end(), common.begin(), common.end());
                                          return all;
                                        }};
    const parallel::StageLayout& layout = instance_.layout();
    const auto actions =
        layout.stages == 1
            ? parallel::accumulation_schedule(1)
            : parallel::pipeline_actions(parallel::pipeline_schedules().get("1f1b"),
                                         {.stages = layout.stages, .chunks = 1, .micros = 1},
                                         instance_.stage());
    const double loss = executor.train(actions, input).losses(1).at(0);
    if (layout.stages == 1) return loss;
    add_over_stages();
    return world_.all_reduce(stages(), {loss}, comm::Op::Sum, TESSERA_HERE("loss")).at(0);
  }

  nn::Outcome infer(const nn::Batch& batch, nn::StepContext& context) {
    return parallel::Executor(instance_, {}, {}, link_.get()).infer(batch, context);
  }

  /// One AdamW step of the trained parameters that this rank holds, with the gradients of the last
  /// train().
  void update(ops::AdamWScalars scalars) {
    const double decay = scalars.weight_decay;
    for (auto& [name, weight] : weights) {
      if (!infos.at(name)->trainable) continue;
      const at::Tensor place = held(*infos.at(name), weight), part = place.contiguous();
      auto& state = state_[name];
      if (state.empty()) state = {at::zeros_like(part), at::zeros_like(part)};
      scalars.weight_decay = decays(*infos.at(name)) ? decay : 0.0;
      ops::adamw(part.data_ptr<float>(),
                 state[0].data_ptr<float>(),
                 state[1].data_ptr<float>(),
                 grads.at(name).data_ptr<float>(),
                 nullptr,
                 DType::F32,
                 part.numel(),
                 scalars);
      if (!part.is_same(place)) place.copy_(part);
    }
    write_working();
  }

  /// Greedy continuation; `stop` ends it (kept) where it is not negative.
  std::vector<std::int64_t> greedy(const std::vector<std::int64_t>& prompt,
                                   std::int64_t count,
                                   bool cached,
                                   std::int64_t vocab,
                                   std::int64_t stop = -1) {
    const auto batch = [](const at::Tensor& ids, bool) { return make_batch(ids); };
    return chosen(prompt, count, cached, vocab, stop, batch);
  }
  /// The same of a decoder that answers `source` and begins with `start`.
  std::vector<std::int64_t> greedy_answer(const std::vector<std::int64_t>& source,
                                          std::int64_t start,
                                          std::int64_t count,
                                          bool cached,
                                          std::int64_t vocab,
                                          std::int64_t stop = -1) {
    const at::Tensor whole = at::tensor(source, at::kLong).view({1, -1});
    const auto batch = [&](const at::Tensor& ids, bool decoding) {
      nn::Batch out = make_batch(decoding ? whole.narrow(1, 0, 0) : whole);
      out.set("decoder_input_ids", ids);
      return out;
    };
    return chosen({start}, count, cached, vocab, stop, batch);
  }

  parallel::ModelInstance& instance() { return instance_; }
  std::map<std::string, std::shared_ptr<const ParamInfo>> infos;
  Tensors weights;  ///< whole; update() moves what this rank holds
  Tensors grads;    ///< for the parameters that this rank holds

 private:
  /// Opens every sink with garbage and adds the uses of a tied parameter.
  class Collector final : public parallel::Policy {
   public:
    explicit Collector(ModelRunner& runner) : runner_(runner) {}
    void before(const parallel::Action& action, const parallel::BlockRun& run) override {
      if (action.kind != parallel::ActionKind::Backward) return;
      for (const auto& param : runner_.instance_.params(run.block))
        param->grad().open(at::full(param->info().local_shape(), 123.0F));
    }
    void after(const parallel::Action& action, const parallel::BlockRun& run) override {
      if (action.kind != parallel::ActionKind::Backward) return;
      for (const auto& param : runner_.instance_.params(run.block)) {
        param->grad().close();
        at::Tensor& total = runner_.grads[param->info().name];
        total = total.defined() ? total + param->grad().out() : param->grad().out();
      }
    }

   private:
    ModelRunner& runner_;
  };

  /// `batch_of`(ids [1, T], whether a cache has what came before).
  template <class BatchOf>
  std::vector<std::int64_t> chosen(std::vector<std::int64_t> input,
                                   std::int64_t count,
                                   bool cached,
                                   std::int64_t vocab,
                                   std::int64_t stop,
                                   const BatchOf& batch_of) {
    std::vector<std::int64_t> made;
    nn::StepContext context(cached ? nn::Mode::Prefill : nn::Mode::Eval, 1);
    while (static_cast<std::int64_t>(made.size()) < count) {
      const at::Tensor ids = at::tensor(input, at::kLong).view({1, -1});
      const nn::Outcome out = infer(batch_of(ids, context.mode() == nn::Mode::Decode), context);
      at::Tensor last;
      if (out.outputs.contains("logits")) last = out.outputs.at("logits")[0][-1].contiguous();
      if (link_) last = link_->from_objective(last, vocab);
      made.push_back(ops::sample_token(last, vocab, {.temperature = 0.0}, 1, 0));
      if (made.back() == stop) break;
      if (cached) {
        context.set_mode(nn::Mode::Decode);
        context.position += static_cast<std::int64_t>(input.size());
        input = {made.back()};
      } else {
        input.push_back(made.back());
      }
    }
    return made;
  }

  const comm::Group& stages() { return world_.group({mesh::Axis::Pp}); }

  /// Gradients of what blocks of several stages use.
  void add_over_stages() {
    for (const parallel::FlatGroup& group : instance_.groups()) {
      if (!group.across_stages()) continue;
      for (const Segment& segment : group.layout.segments()) {
        at::Tensor& grad = grads.at(segment.info->name);
        grad = grad.contiguous();
        world_.transport()
            .all_reduce(stages(),
                        {grad.data_ptr<float>(), static_cast<std::size_t>(grad.numel())},
                        comm::Op::Sum,
                        TESSERA_HERE("tied gradient"))
            ->wait();
      }
    }
  }

  void write_working() {
    const c10::NoGradGuard no_grad;
    for (int b = 0; b < instance_.num_blocks(); ++b) {
      if (instance_.layout().stage_of_block(b) != instance_.stage()) continue;
      for (const auto& param : instance_.params(b)) {
        at::Tensor tensor = param->tensor();
        tensor.copy_(held(param->info(), weights.at(param->info().name)));
      }
    }
  }

  std::unique_ptr<comm::World> alone_;
  comm::World& world_;
  parallel::ModelInstance instance_;
  /// Whether terms of the loss may be divided by nn::common_denominators(), on any stage.
  bool has_experts_ = false;
  std::unique_ptr<parallel::StageLink> link_;
  std::map<std::string, std::vector<at::Tensor>> state_;
};

}  // namespace tessera::test
