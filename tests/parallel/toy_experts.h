// SPDX-License-Identifier: Apache-2.0
// A model with experts that are chosen by the number of a token, and its training in a layout.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/geometry.h"
#include "tessera/comm/world.h"
#include "tessera/memory/ledger.h"
#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/executor.h"
#include "tessera/parallel/gradient_reduction.h"
#include "tessera/parallel/sharded_optimizer.h"
#include "tessera/parallel/weight_gather.h"

namespace tessera::parallel::toy {

// Legend: T tokens of a micro-batch, C channels, E experts, S sources. A matrix of an expert has
// more than one chunk, and is not a multiple of it.
inline constexpr std::int64_t kT = 8, kC = 36, kE = 5;
/// Micro-batches of a step; the last one has no samples, so that a rank has none where there are
/// several.
inline constexpr int kMicros = 8;

/// Rows that ranks along Ep give each other: those of every source, in order.
inline std::vector<at::Tensor> exchange(const at::Tensor& rows,
                                        const nn::ExpertParallel* experts,
                                        const std::string& what) {
  if (experts == nullptr) return {rows};
  std::vector<double> mine(static_cast<std::size_t>(1 + kT * kC), 0.0);
  mine.front() = static_cast<double>(rows.size(0));
  const at::Tensor flat = rows.contiguous();
  std::copy_n(flat.const_data_ptr<float>(), flat.numel(), mine.begin() + 1);
  const std::vector<double> all =
      experts->world->all_gather(*experts->group, mine, TESSERA_HERE(what));
  std::vector<at::Tensor> out;
  for (std::size_t s = 0; s < all.size() / mine.size(); ++s) {
    const double* const from = all.data() + s * mine.size();
    at::Tensor of_source = at::empty({static_cast<std::int64_t>(from[0]), kC}, at::kFloat);
    std::copy_n(from + 1, of_source.numel(), of_source.data_ptr<float>());
    out.push_back(std::move(of_source));
  }
  return out;
}

/// The rows of a micro-batch that go to an expert: those whose number gives it as the rest.
inline at::Tensor rows_of(std::int64_t expert, std::int64_t rows) {
  std::vector<std::int64_t> out;
  for (std::int64_t t = 0; t < rows; ++t) {
    if (t * t % kE == expert) out.push_back(t);
  }
  return at::tensor(out, at::kLong);
}

inline std::pair<std::int64_t, std::int64_t> experts_of(const nn::ExpertParallel* experts,
                                                        int index) {
  return experts == nullptr ? std::pair{std::int64_t{0}, kE}
                            : mesh::even_cut(kE, 1, experts->group->size(), index);
}

/// Of the results of all owners, the rows of this rank: each comes from the owner of its expert.
inline at::Tensor collect(const std::vector<at::Tensor>& of_sources,
                          const nn::ExpertParallel* experts,
                          const std::string& what) {
  if (experts == nullptr) return of_sources.front();
  at::Tensor out;
  for (std::size_t s = 0; s < of_sources.size(); ++s) {
    const std::vector<at::Tensor> of_owners = exchange(of_sources[s], experts, what);
    if (static_cast<int>(s) != experts->group->index) continue;
    out = at::zeros_like(of_sources[s]);
    for (int owner = 0; owner < experts->group->size(); ++owner) {
      const auto [first, last] = experts_of(experts, owner);
      for (std::int64_t e = first; e < last; ++e) {
        const at::Tensor rows = rows_of(e, out.size(0));
        out.index_copy_(0, rows, of_owners[static_cast<std::size_t>(owner)].index_select(0, rows));
      }
    }
  }
  return out;
}

/// The traffic of one call of the layer.
struct Call {
  const Param* matrix = nullptr;
  const Param* bias = nullptr;
  nn::StepContext* context = nullptr;
  const nn::ExpertParallel* experts = nullptr;
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> own() const {
    return experts_of(experts, experts == nullptr ? 0 : experts->group->index);
  }
};

/// y = W_e x + b_e for the expert e of every row.
class Apply : public torch::autograd::Function<Apply> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& x_TC,
                            const at::Tensor& matrix_ECC,
                            const at::Tensor& bias_EC,
                            std::int64_t call) {
    const auto& with = *reinterpret_cast<const Call*>(call);
    const std::vector<at::Tensor> x = exchange(x_TC, with.experts, "tokens to experts");
    context->saved_data["call"] = call;
    context->save_for_backward({x.begin(), x.end()});
    const auto [first, last] = with.own();
    std::vector<at::Tensor> out;
    for (const at::Tensor& of_source : x) {
      at::Tensor y = at::zeros_like(of_source);
      for (std::int64_t e = first; e < last; ++e) {
        const at::Tensor rows = rows_of(e, y.size(0));
        y.index_copy_(
            0,
            rows,
            at::addmm(
                bias_EC[e - first], of_source.index_select(0, rows), matrix_ECC[e - first].t()));
      }
      out.push_back(std::move(y));
    }
    return collect(out, with.experts, "results of experts");
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto& with = *reinterpret_cast<const Call*>(context->saved_data["call"].toInt());
    const std::vector<at::Tensor> x = context->get_saved_variables();
    const std::vector<at::Tensor> g = exchange(grads.front(), with.experts, "gradients to experts");
    const auto [first, last] = with.own();
    std::vector<at::Tensor> out;
    for (std::size_t s = 0; s < x.size(); ++s) {
      out.push_back(at::zeros_like(x[s]));
      for (std::int64_t e = first; e < last; ++e) {
        const at::Tensor rows = rows_of(e, x[s].size(0));
        out.back().index_copy_(
            0, rows, at::mm(g[s].index_select(0, rows), with.matrix->tensor().detach()[e - first]));
      }
    }
    const auto weights = [with, x, g] { write_gradients(with, x, g); };
    with.context->deferring() ? with.context->defer(weights) : weights();
    return {collect(out, with.experts, "gradients of tokens"), {}, {}, {}};
  }

 private:
  /// A slice for each source; one without tokens is not written.
  static void write_gradients(const Call& with,
                              const std::vector<at::Tensor>& x,
                              const std::vector<at::Tensor>& g) {
    const auto [first, last] = with.own();
    for (std::size_t s = 0; s < x.size(); ++s) {
      if (x[s].size(0) == 0) continue;
      for (std::int64_t e = first; e < last; ++e) {
        const at::Tensor rows = rows_of(e, x[s].size(0)), g_RC = g[s].index_select(0, rows);
        write(with.matrix->grad(), s, e - first, at::mm(g_RC.t(), x[s].index_select(0, rows)));
        write(with.bias->grad(), s, e - first, g_RC.sum(0));
      }
      with.matrix->grad().written(static_cast<int>(s));
      with.bias->grad().written(static_cast<int>(s));
    }
  }
  static void write(GradSink& sink,
                    std::size_t slice,
                    std::int64_t expert,
                    const at::Tensor& grad) {
    const at::Tensor to = sink.out(static_cast<int>(slice))[expert];
    sink.accumulate(static_cast<int>(slice)) ? to.add_(grad) : to.copy_(grad);
  }
};

class Experts final : public nn::Block {
 public:
  void declare(nn::Params& params) override {
    using enum LogicalAxis;
    matrix_ = params.add("matrix", {kE, kC, kC}, {Expert, Ffn, Embed}, Init::normal(0.1));
    bias_ = params.add("bias", {kE, kC}, {Expert, Ffn}, Init::normal(0.1));
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch&, nn::StepContext& context) override {
    return {.flow = {.diff = {in.diff.at(0) + apply(in.diff.at(0), context)}}};
  }
  [[nodiscard]] bool exchanges() const override { return true; }
  nn::Outcome idle(std::vector<at::Tensor>& inputs, nn::StepContext& context) override {
    inputs.push_back(at::empty({0, kC}, at::kFloat).set_requires_grad(true));
    return {.flow = {.diff = {apply(inputs.back(), context)}}};
  }

 private:
  at::Tensor apply(const at::Tensor& x_TC, nn::StepContext& context) {
    calls_.push_back({matrix_, bias_, &context, context.experts});
    return Apply::apply(
        x_TC, matrix_->tensor(), bias_->tensor(), reinterpret_cast<std::int64_t>(&calls_.back()));
  }
  Param *matrix_ = nullptr, *bias_ = nullptr;
  std::list<Call> calls_;
};

/// A layer that every rank has.
class Mix final : public nn::Block {
 public:
  void declare(nn::Params& params) override {
    using enum LogicalAxis;
    weight_ = params.add("weight", {kC, kC}, {Ffn, Embed}, Init::normal(0.2));
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext&) override {
    const at::Tensor x_TC = in.diff.empty() ? batch.tensor("x")[0] : in.diff.at(0);
    return {.flow = {.diff = {at::mm(x_TC, weight_->tensor().t())}}};
  }

 private:
  Param* weight_ = nullptr;
};

class Squares final : public nn::Objective {
 public:
  void declare(nn::Params& params) override {
    scale_ = params.add("scale", {kC}, {LogicalAxis::Embed}, Init::ones());
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch&, nn::StepContext&) override {
    const at::Tensor y = in.diff.at(0) * scale_->tensor() - 0.5;
    return {.terms = {{.name = "loss", .sum = (y * y).sum()}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.size() * kT)};
  }

 private:
  Param* scale_ = nullptr;
};

inline nn::Model model() {
  nn::Model out;
  out.blocks.push_back({"first", [] { return std::make_unique<Mix>(); }});
  out.blocks.push_back({"experts", [] { return std::make_unique<Experts>(); }});
  out.blocks.push_back({"second", [] { return std::make_unique<Mix>(); }});
  out.blocks.push_back({"more", [] { return std::make_unique<Experts>(); }});
  out.blocks.push_back({"loss", [] { return std::make_unique<Squares>(); }});
  return out;
}

struct Training {
  int ranks = 1, ep = 1, shards = 0;  ///< shards: ranks that hold all weights in stage 3; 0: all
  ReductionOptions reduction = {.stage = 0};
  std::string optimizer = "AdamW";
  bool recompute = false;
  bool splits_backward = false;  ///< weight gradients in a pass of their own, as with zero bubbles
  const checkpoint::Checkpoint* from = nullptr;
  /// Called on the first rank when the gradients of a step are complete.
  std::function<void(const memory::Usage&)> usage = {};
};

struct Result {
  std::map<std::string, std::vector<float>> tensors;  ///< of a save
  std::vector<checkpoint::Checkpoint::Tensor> shapes;
  std::vector<double> norms;
  bool operator==(const Result& other) const {
    return tensors == other.tensors && norms == other.norms;
  }
};

inline void number(const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
  const auto seed = static_cast<double>(std::hash<std::string>()(info.name) % 1000);
  for (std::int64_t i = begin; i < end; ++i)
    *out++ = static_cast<float>(0.2 * std::sin(seed + 0.7 * static_cast<double>(i)));
}

inline nn::Batch micro_batch(std::int64_t step, int number) {
  nn::Batch out;
  if (number + 1 == kMicros) return out;
  out.sample_ids = {step * kMicros + number};
  const at::Tensor places =
      at::arange(kT * kC, at::kDouble) * 1.3 + static_cast<double>(out.sample_ids.front());
  out.set("x", at::sin(places).to(at::kFloat).view({1, kT, kC}));
  return out;
}

/// Copies what a piece has into whole tensors, and counts who wrote each element.
inline void keep(const checkpoint::PieceBytes& piece,
                 Result& result,
                 std::map<std::string, std::vector<int>>& writers) {
  std::int64_t numel = 1;
  for (const std::int64_t size : piece.shape)
    numel *= size;
  std::vector<float>& whole = result.tensors[piece.name];
  if (whole.empty()) result.shapes.push_back({piece.name, DType::F32, piece.shape});
  whole.resize(static_cast<std::size_t>(numel));
  std::vector<int>& count = writers[piece.name];
  count.resize(whole.size());
  checkpoint::SharedRuns runs(piece.piece, {mesh::whole(piece.shape), 0, numel});
  const auto* const values = reinterpret_cast<const float*>(piece.bytes.data());
  while (const auto run = runs.next()) {
    std::copy_n(values + run->a, run->count, whole.begin() + run->b);
    for (std::int64_t i = 0; i < run->count; ++i)
      ++count[static_cast<std::size_t>(run->b + i)];
  }
}

/// A save of a training, as a checkpoint that is never written.
class Saved final : public checkpoint::Source {
 public:
  explicit Saved(const Result& result) : result_(result) {}
  void read(const std::string& name,
            const mesh::Piece& want,
            DType,
            std::byte* out) const override {
    const std::vector<float>& whole = result_.tensors.at(name);
    const auto& shape =
        std::find_if(result_.shapes.begin(), result_.shapes.end(), [&](const auto& tensor) {
          return tensor.name == name;
        })->shape;
    checkpoint::SharedRuns runs(want,
                                {mesh::whole(shape), 0, static_cast<std::int64_t>(whole.size())});
    while (const auto run = runs.next())
      std::copy_n(whole.begin() + run->b, run->count, reinterpret_cast<float*>(out) + run->a);
  }
  static checkpoint::Checkpoint of(const Result& result, std::int64_t step) {
    checkpoint::Meta meta;
    meta.step = step;
    return {"saved", std::move(meta), result.shapes, std::make_shared<Saved>(result)};
  }

 private:
  const Result& result_;
};

inline std::vector<Action> actions_of(const Training& how, int micros) {
  std::vector<Action> out;
  for (const Action& action : accumulation_schedule(micros)) {
    if (!how.splits_backward || action.kind != ActionKind::Backward) {
      out.push_back(action);
      continue;
    }
    out.push_back({.kind = ActionKind::BackwardInputs, .micro = action.micro});
    out.push_back({.kind = ActionKind::BackwardWeights, .micro = action.micro});
  }
  return out;
}

/// Trains `steps` steps from `begin` on.
inline Result train(const Training& how, std::int64_t begin = 0, std::int64_t steps = 2) {
  const int shards = how.shards > 0 ? how.shards : how.ranks;
  const mesh::Mesh mesh({.dp_rep = how.ranks / shards, .dp_shard = shards / how.ep, .ep = how.ep});
  Result result;
  std::map<std::string, std::vector<int>> writers;
  std::mutex mutex;
  comm::run_threads(mesh, [&](comm::World& world) {
    at::set_num_threads(1);
    memory::Ledger ledger;
    const memory::ScopedLedger counts(ledger);
    config::Problems problems;
    config::Origins origins;
    const auto rule = optim::rule_factory(how.optimizer)(json::Value(), problems, origins);
    WeightOptions weights;
    const int stage = how.reduction.stage;
    weights.residency = stage == 3  ? Residency::Sharded
                        : stage > 0 ? Residency::Whole
                                    : Residency::Replicated;
    weights.experts = {.ep = {mesh::Axis::Ep}};
    ModelInstance model(toy::model(), weights, world);
    ReductionOptions reduction = how.reduction;
    const int micros = kMicros / how.ranks;
    reduction.max_micros = micros;
    ShardedOptimizer optimizer(world, model, *rule, stage, [](const ParamInfo& info) {
      return ParamSetting{.decay = decays(info)};
    });
    optimizer.fill(number);
    if (how.from != nullptr) optimizer.load(*how.from);
    GradientReduction gradients(world, model, reduction);
    WeightGather gather(model, {});
    Recompute recompute;
    recompute.blocks.assign(5, how.recompute);
    Executor executor(model, {&gather, &gradients}, recompute);
    const int index = world.group(mesh::AxisSet::dp()).index;
    for (std::int64_t step = begin; step < begin + steps; ++step) {
      StepInput input{.step = step, .seed = 1, .num_micros = micros};
      input.load = [&](int micro) { return micro_batch(step, micro * how.ranks + index); };
      input.global_denominators = [&](const std::vector<std::vector<double>>& mine) {
        double sum = 0;
        for (const std::vector<double>& of_micro : mine)
          sum += of_micro.front();
        return world.all_reduce(
            world.everyone(), {sum}, comm::Op::Sum, TESSERA_HERE("count tokens"));
      };
      optimizer.wait_weights();
      executor.train(actions_of(how, micros), input);
      gradients.finish();
      if (how.usage && world.is_leader()) how.usage(ledger.usage());
      const double norm = optim::gradient_norm(gradients.chunk_sums());
      const double clip = std::min(1.0, 0.5 / norm);
      optimizer.update(gradients, {.lr = 0.01, .grad_scale = clip, .step = step + 1});
      if (world.is_leader()) result.norms.push_back(norm);
    }
    optimizer.wait_weights();
    {
      const auto pieces = optimizer.pieces(/*for_save=*/true);
      const std::scoped_lock lock(mutex);
      for (const checkpoint::PieceBytes& piece : pieces) {
        if (piece.dtype == DType::F32) keep(piece, result, writers);
      }
    }
    optimizer.release_pieces();
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
  });
  for (const auto& [name, counts] : writers)
    EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), std::ssize(counts)) << name;
  return result;
}

}  // namespace tessera::parallel::toy
