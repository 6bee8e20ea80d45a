// SPDX-License-Identifier: Apache-2.0
#include "tessera/api/caller_model.h"

#include <map>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include "tessera/base/error.h"
#include "tessera/nn/step_context.h"

namespace tessera::api {
namespace {

constexpr const char* kSample = "sample";  // [index, set] of each sample
constexpr const char* kGather = "gather";
constexpr std::size_t kMostResults = 65536;

thread_local std::string callback_failure;

[[noreturn]] void throw_callback_failure(const std::string& block, const char* what) {
  throw Error(Error::Kind::Unsupported,
              fmt::format("{} of block {}: {}", what, block, callback_failure),
              "");
}

/// The samples of a micro-batch as c_api.h describes them.
class Micro {
 public:
  Micro(const nn::Batch& batch, std::int64_t step, std::int64_t seed) {
    if (!batch.has(kSample)) return;  // a batch of gathering_batch()
    const at::Tensor& sample = batch.tensor(kSample);
    const auto* const rows = sample.const_data_ptr<std::int64_t>();
    for (std::int64_t row = 0; row < batch.size(); ++row)
      samples_.push_back(rows[2 * row]);
    view_ = {.set = batch.size() > 0 ? static_cast<std::int32_t>(rows[1]) : 0,
             .count = static_cast<std::int32_t>(batch.size()),
             .step = step,
             .seed = seed,
             .samples = samples_.data(),
             .numbers = batch.sample_ids.data()};
  }
  Micro(const Micro&) = delete;
  Micro& operator=(const Micro&) = delete;
  [[nodiscard]] const tessera_micro* view() const { return &view_; }

 private:
  std::vector<std::int64_t> samples_;
  tessera_micro view_ = {};
};

at::Tensor tensor_at(void* impl) {
  if (impl == nullptr) return {};
  return at::Tensor(
      c10::intrusive_ptr<at::TensorImpl>::reclaim_copy(static_cast<at::TensorImpl*>(impl)));
}

/// Room for the tensors that a callback returns.
class Results {
 public:
  explicit Results(std::size_t capacity) : room_(capacity) {
    view_ = {.count = 0, .capacity = static_cast<std::int32_t>(capacity), .tensors = room_.data()};
  }
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;
  [[nodiscard]] tessera_results* view() { return &view_; }
  [[nodiscard]] std::vector<at::Tensor> take() const {
    TESSERA_ASSERT(view_.count >= 0 && view_.count <= view_.capacity);
    std::vector<at::Tensor> out;
    for (void* impl : std::span(room_).first(static_cast<std::size_t>(view_.count)))
      out.push_back(tensor_at(impl));
    return out;
  }

 private:
  std::vector<void*> room_;
  tessera_results view_ = {};
};

std::vector<tessera_tensor> views_of(const std::vector<at::Tensor>& tensors) {
  std::vector<tessera_tensor> out;
  for (const at::Tensor& tensor : tensors)
    out.push_back(tensor.defined() ? view_of(tensor) : tessera_tensor{});
  return out;
}

/// One run of a block: what its backward needs to know again.
struct Run {
  std::shared_ptr<const CallerModel> caller;
  int block = 0;
  nn::Batch batch;
  std::int64_t step = 0;

  [[nodiscard]] const std::string& name() const {
    return caller->blocks[static_cast<std::size_t>(block)].name;
  }
};

/// The loss of the caller, which the library multiplies by its count in fp64.
struct Scaled {
  double factor = 1.0;
  at::ScalarType type = at::kFloat;
};

/// The node of a block in the library's graph; the caller's own graph is behind it.
class CallerNode final : public torch::autograd::Node {
 public:
  CallerNode(Run run, std::optional<Scaled> scaled, torch::autograd::edge_list next)
      : Node(std::move(next)), run_(std::move(run)), scaled_(scaled) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& given) override {
    std::vector<at::Tensor> gradients = std::move(given);
    if (scaled_) gradients.at(0) = (gradients.at(0) * scaled_->factor).to(scaled_->type);
    const Micro micro(run_.batch, run_.step, run_.caller->seed);
    Results results(num_outputs());
    const std::vector<tessera_tensor> views = views_of(gradients);
    const tessera_callbacks& call = run_.caller->callbacks;
    if (call.backward(call.user,
                      run_.block,
                      micro.view(),
                      views.data(),
                      static_cast<std::int32_t>(views.size()),
                      results.view()) != 0)
      throw_callback_failure(run_.name(), "backward");
    std::vector<at::Tensor> out = results.take();
    TESSERA_ASSERT(out.size() == num_outputs());
    return out;
  }
  [[nodiscard]] std::string name() const override { return "TesseraCallerBlock"; }

 private:
  Run run_;
  std::optional<Scaled> scaled_;
};

/// The part that blocks and the objective share. `Base`: nn::Block or nn::Objective.
template <class Base>
class Calls : public Base {
 public:
  Calls(std::shared_ptr<const CallerModel> caller, int block)
      : caller_(std::move(caller)), block_(block) {}

  void declare(nn::Params& params) override {
    for (const CallerParam& param : spec().params) {
      const nn::Params::Tags tags{
          .trainable = param.trainable, .without_prefix = true, .role = param.role};
      const std::vector<LogicalAxis> axes(param.shape.size(), LogicalAxis::None);
      params_.push_back(param.tied
                            ? params.tied(param.name, param.shape, axes, Init::zeros(), tags)
                            : params.add(param.name, param.shape, axes, Init::zeros(), tags));
    }
  }

 protected:
  [[nodiscard]] const CallerBlockSpec& spec() const {
    return caller_->blocks[static_cast<std::size_t>(block_)];
  }
  [[nodiscard]] const CallerModel& caller() const { return *caller_; }

  static tessera_pass pass_of(const nn::Batch& batch, const nn::StepContext& context) {
    if (batch.has(kGather)) return TESSERA_GATHER;
    return context.training() ? TESSERA_TRAIN : TESSERA_EVAL;
  }

  /// Calls the caller's forward on detached inputs and returns its results.
  std::vector<at::Tensor> call(const nn::Flow& in,
                               const nn::Batch& batch,
                               const nn::StepContext& context,
                               bool graph) {
    for (const at::Tensor& input : in.diff) {
      TESSERA_REQUIRE(!input.is_meta(),
                      Unsupported,
                      "a block of the caller cannot run without values: " + spec().name,
                      "");
    }
    const Micro micro(batch, context.step, caller_->seed);
    const std::vector<tessera_tensor> inputs = views_of(in.diff);
    Results results(kMostResults);
    const tessera_callbacks& to = caller_->callbacks;
    if (to.forward(to.user,
                   block_,
                   micro.view(),
                   pass_of(batch, context),
                   graph ? 1 : 0,
                   inputs.data(),
                   static_cast<std::int32_t>(inputs.size()),
                   results.view()) != 0)
      throw_callback_failure(spec().name, "forward");
    return results.take();
  }

  /// Detaches `outputs` from the caller's graph and attaches them to a node that calls its
  /// backward.
  void attach(std::vector<at::Tensor>& outputs,
              const nn::Flow& in,
              const nn::Batch& batch,
              const nn::StepContext& context,
              std::optional<double> factor = {}) {
    std::optional<Scaled> scaled;
    if (factor) scaled = Scaled{*factor, outputs.at(0).scalar_type()};
    std::vector<bool> wanted;
    for (at::Tensor& output : outputs) {
      wanted.push_back(output.requires_grad());
      output = output.detach();
    }
    torch::autograd::edge_list next;
    for (const at::Tensor& input : in.diff)
      next.push_back(torch::autograd::impl::gradient_edge(input));
    for (const Param* param : params_) {
      if (param->info().trainable)
        next.push_back(torch::autograd::impl::gradient_edge(param->tensor()));
    }
    const auto node = std::make_shared<CallerNode>(
        Run{caller_, block_, batch, context.step}, scaled, std::move(next));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      at::Tensor& output = outputs[i];
      if (factor) output = output.to(at::kDouble) * *factor;
      // Every output is an input of the node, in order, also one without a gradient.
      if (wanted[i]) {
        torch::autograd::create_gradient_edge(output, node);
      } else {
        node->add_input_metadata(torch::autograd::Node::undefined_input());
      }
    }
  }

 private:
  std::shared_ptr<const CallerModel> caller_;
  int block_;
  std::vector<const Param*> params_;
};

class CallerBlock final : public Calls<nn::Block> {
 public:
  using Calls::Calls;
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const bool graph = context.training() && at::GradMode::is_enabled();
    std::vector<at::Tensor> outputs = call(in, batch, context, graph);
    if (graph) attach(outputs, in, batch, context);
    return {.flow = {.diff = std::move(outputs)}};
  }
};

class CallerObjective final : public Calls<nn::Objective> {
 public:
  using Calls::Calls;
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    const bool graph = context.training() && at::GradMode::is_enabled();
    std::vector<at::Tensor> outputs = call(in, batch, context, graph);
    if (pass_of(batch, context) == TESSERA_GATHER) return {};
    TESSERA_REQUIRE(outputs.size() == 1 && outputs[0].defined() && outputs[0].dim() == 0,
                    Shape,
                    fmt::format("block {}: the loss is not one number", spec().name),
                    "return the mean loss of the micro-batch, a 0-d tensor");
    const double counted = denominators(batch).front();
    if (counted == 0) {
      outputs[0] = at::zeros({}, at::kDouble);  // the mean of nothing
    } else if (graph) {
      attach(outputs, in, batch, context, counted);
    } else {
      outputs[0] = outputs[0].to(at::kDouble) * counted;
    }
    return {.terms = {{.name = "loss", .sum = outputs[0]}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    if (batch.size() == 0 || batch.has(kGather)) return {0.0};
    const Micro micro(batch, 0, caller().seed);
    double counted = 0.0;
    if (caller().callbacks.count(caller().callbacks.user, micro.view(), &counted) != 0)
      throw_callback_failure(spec().name, "the count");
    return {counted};
  }
};

class CallerDataset final : public data::Dataset {
 public:
  CallerDataset(std::int64_t size, int set) : size_(size), set_(set) {}
  [[nodiscard]] std::string name() const override {
    return set_ == 0 ? "the program's training data" : "the program's validation data";
  }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override {
    return {{.name = kSample, .dtype = DType::I64, .shape = {2}}};
  }
  void read(std::int64_t index, data::SampleWriter& out) const override {
    out.set(kSample, std::vector<std::int64_t>{index, set_});
  }

 private:
  std::int64_t size_;
  std::int64_t set_;
};

const json::Value& member(const json::Value& of, const char* key) {
  const json::Value* const found = of.find(key);
  TESSERA_REQUIRE(found != nullptr,
                  Format,
                  fmt::format("the description of the model lacks \"{}\"", key),
                  "use the Python package of the same version as the library");
  return *found;
}

Role role_named(const std::string& name) {
  static const std::map<std::string, Role> kRoles = {{"matrix", Role::Matrix},
                                                     {"vector", Role::Vector},
                                                     {"token_table", Role::TokenTable},
                                                     {"position_table", Role::PositionTable},
                                                     {"output_head", Role::OutputHead}};
  const auto found = kRoles.find(name);
  TESSERA_REQUIRE(found != kRoles.end(),
                  Format,
                  fmt::format("the description of the model has a parameter of the role {}", name),
                  "");
  return found->second;
}

CallerParam read_param(const json::Value& written, const std::vector<at::Tensor>& values) {
  CallerParam out;
  out.name = member(written, "name").as_string();
  for (const json::Value& size : member(written, "shape").items())
    out.shape.push_back(size.as_integer().value_or(0));
  out.role = role_named(member(written, "role").as_string());
  out.tied = member(written, "tied").as_bool();
  out.trainable = member(written, "trainable").as_bool();
  const auto at = static_cast<std::size_t>(member(written, "value").as_integer().value_or(-1));
  TESSERA_REQUIRE(at < values.size(),
                  Format,
                  fmt::format("the parameter {} has no value", out.name),
                  "give one for each parameter");
  out.value = values[at];
  return out;
}

}  // namespace

std::shared_ptr<CallerModel> read_caller_model(const json::Value& written,
                                               const std::vector<at::Tensor>& values) {
  auto out = std::make_shared<CallerModel>();
  for (const json::Value& block : member(written, "blocks").items()) {
    CallerBlockSpec spec{.name = member(block, "name").as_string(), .params = {}};
    for (const json::Value& param : member(block, "parameters").items())
      spec.params.push_back(read_param(param, values));
    out->blocks.push_back(std::move(spec));
  }
  TESSERA_REQUIRE(!out->blocks.empty(), Config, "the model has no block", "give at least one");
  return out;
}

nn::Model model_of(const std::shared_ptr<const CallerModel>& caller) {
  nn::Model model;
  const int last = static_cast<int>(caller->blocks.size()) - 1;
  for (int block = 0; block <= last; ++block) {
    model.blocks.push_back({caller->blocks[static_cast<std::size_t>(block)].name,
                            [caller, block, last]() -> std::unique_ptr<nn::Block> {
                              if (block == last)
                                return std::make_unique<CallerObjective>(caller, block);
                              return std::make_unique<CallerBlock>(caller, block);
                            }});
  }
  return model;
}

std::unique_ptr<data::Dataset> caller_dataset(std::int64_t size, int set) {
  return std::make_unique<CallerDataset>(size, set);
}

nn::Batch gathering_batch() {
  nn::Batch batch;
  batch.set(kGather, at::zeros({1}, at::kLong));
  batch.sample_ids = {0};
  return batch;
}

tessera_tensor view_of(const at::Tensor& tensor) {
  return {.storage = tensor.storage().unsafeGetStorageImpl(),
          .type = static_cast<std::int32_t>(tensor.scalar_type()),
          .dims = static_cast<std::int32_t>(tensor.dim()),
          .offset = tensor.storage_offset(),
          .sizes = tensor.sizes().data(),
          .strides = tensor.strides().data()};
}

void note_callback_failure(std::string what) {
  callback_failure = std::move(what);
}

}  // namespace tessera::api
