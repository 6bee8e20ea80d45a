// SPDX-License-Identifier: Apache-2.0
// The C interface: a caller that computes its own blocks gets the updates of plain gradient
// descent, its errors come back, and its checkpoints have its own names.
#include "tessera/c_api.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"

namespace tessera::api {
namespace {

using ::testing::HasSubstr;

// Legend: B batch, I inputs, H hidden, O outputs.
constexpr std::int64_t kI = 5, kH = 7, kO = 3, kSamples = 24;
// fp32 sums in another order: loss and weights are of the order of 1.
constexpr double kClose = 1e-6;

at::Tensor values(std::vector<std::int64_t> shape, double scale, double phase) {
  const at::Tensor counted = at::arange(c10::multiply_integers(shape), at::kDouble);
  return (at::sin(counted * 0.7 + phase) * scale).to(at::kFloat).reshape(shape);
}

/// y = tanh(x W1) W2, loss = mean((y - t)^2): computed by the caller, block by block.
class Caller {
 public:
  Caller() : x_(values({kSamples, kI}, 1.0, 0.3)), t_(values({kSamples, kO}, 1.0, 1.1)) {
    for (const auto& [name, shape] :
         {std::pair{"first", std::vector{kI, kH}}, std::pair{"second", std::vector{kH, kO}}})
      first_[name] = values(shape, 0.5, 0.1);
    callbacks_ = {
        .user = this, .count = count, .forward = forward, .backward = backward, .log = log};
  }

  int32_t open(const std::string& config, tessera_session** out) {
    const std::string model =
        R"({"blocks": [{"name": "in", "parameters": [{"name": "first", "shape": [5, 7], "role": "matrix",
            "tied": false, "trainable": true, "value": 0}]},
            {"name": "out", "parameters": [{"name": "second", "shape": [7, 3], "role": "matrix",
            "tied": false, "trainable": true, "value": 1}]}]})";
    std::array<void*, 2> pointers = {first_["first"].unsafeGetTensorImpl(),
                                     first_["second"].unsafeGetTensorImpl()};
    const int32_t code = tessera_open(config.c_str(),
                                      "caller.json",
                                      model.c_str(),
                                      R"({"size": 24, "validation": 8, "set": []})",
                                      pointers.data(),
                                      2,
                                      &callbacks_,
                                      out);
    if (code != 0) return code;
    for (int block = 0; block < 2; ++block) {
      tessera_tensor view;
      EXPECT_EQ(tessera_parameter(*out, block, 0, &view), 0);
      weights_[static_cast<std::size_t>(block)] = tensor_of(view).set_requires_grad(true);
    }
    return 0;
  }

  /// The same training by plain gradient descent on the whole batch.
  [[nodiscard]] std::vector<double> descend(int steps, std::int64_t batch, double lr) const {
    at::Tensor w1 = first_.at("first").clone(), w2 = first_.at("second").clone();
    std::vector<double> losses;
    for (int step = 0; step < steps; ++step) {
      w1.set_requires_grad(true);
      w2.set_requires_grad(true);
      const at::Tensor x = x_.narrow(0, step * batch, batch), t = t_.narrow(0, step * batch, batch);
      const at::Tensor loss = at::mse_loss(at::tanh(x.mm(w1)).mm(w2), t);
      losses.push_back(loss.item<double>());
      const auto grads = torch::autograd::grad({loss}, {w1, w2});
      const at::NoGradGuard no_grad;
      w1 = (w1 - lr * grads[0]).detach();
      w2 = (w2 - lr * grads[1]).detach();
    }
    return losses;
  }

  [[nodiscard]] at::Tensor weight(int block) const {
    return weights_[static_cast<std::size_t>(block)];
  }
  /// The number of references to the memory of the first weights.
  [[nodiscard]] std::size_t uses_of_first_weights() const {
    std::size_t uses = 0;
    for (const auto& [name, value] : first_)
      uses += value.use_count() + value.storage().use_count();
    return uses;
  }
  bool fails = false;
  std::vector<std::string> gathered;

 private:
  static at::Tensor tensor_of(const tessera_tensor& view) {
    auto storage = c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
        static_cast<c10::StorageImpl*>(view.storage)));
    return at::empty({0}, static_cast<at::ScalarType>(view.type))
        .set_(std::move(storage),
              view.offset,
              at::IntArrayRef(view.sizes, static_cast<std::size_t>(view.dims)),
              at::IntArrayRef(view.strides, static_cast<std::size_t>(view.dims)));
  }

  static int count(void* /*user*/, const tessera_micro* micro, double* out) {
    *out = micro->count;
    return 0;
  }

  static int forward(void* user,
                     int32_t block,
                     const tessera_micro* micro,
                     int32_t pass,
                     int32_t graph,
                     const tessera_tensor* inputs,
                     int32_t num_inputs,
                     tessera_results* results) {
    auto& self = *static_cast<Caller*>(user);
    if (self.fails) {
      tessera_callback_failed("the caller has no more paper");
      return 1;
    }
    if (pass == TESSERA_GATHER) {
      self.gathered.push_back(block == 0 ? "in" : "out");
      return 0;
    }
    const at::AutoGradMode mode(graph != 0);
    const at::Tensor rows =
        at::from_blob(const_cast<int64_t*>(micro->samples), {micro->count}, at::kLong).clone();
    Kept kept;
    if (block == 0) {
      kept.output = at::tanh(self.x_.index_select(0, rows).mm(self.weight(0)));
    } else {
      EXPECT_EQ(num_inputs, 1);
      kept.input = tensor_of(inputs[0]).detach();
      kept.input.set_requires_grad(graph != 0);
      kept.output = at::mse_loss(kept.input.mm(self.weight(1)), self.t_.index_select(0, rows));
    }
    results->tensors[0] = kept.output.unsafeGetTensorImpl();
    results->count = 1;
    self.kept_[{block, micro->numbers[0]}] = std::move(kept);
    return 0;
  }

  static int backward(void* user,
                      int32_t block,
                      const tessera_micro* micro,
                      const tessera_tensor* gradients,
                      int32_t num_gradients,
                      tessera_results* results) {
    auto& self = *static_cast<Caller*>(user);
    EXPECT_EQ(num_gradients, 1);
    const Kept kept = std::move(self.kept_.extract({block, micro->numbers[0]}).mapped());
    std::vector<at::Tensor> of;
    if (kept.input.defined()) of.push_back(kept.input);
    of.push_back(self.weight(block));
    self.alive_ = torch::autograd::grad({kept.output}, of, {tensor_of(gradients[0])});
    for (std::size_t i = 0; i < self.alive_.size(); ++i)
      results->tensors[i] = self.alive_[i].unsafeGetTensorImpl();
    results->count = static_cast<int32_t>(self.alive_.size());
    return 0;
  }

  static void log(void* /*user*/, int32_t /*level*/, const char* /*message*/) {}

  struct Kept {
    at::Tensor input, output;
  };
  at::Tensor x_, t_;
  std::map<std::string, at::Tensor> first_;
  std::array<at::Tensor, 2> weights_;
  std::map<std::pair<int, std::int64_t>, Kept> kept_;
  std::vector<at::Tensor> alive_;
  tessera_callbacks callbacks_ = {};
};

std::string config(int stage, int micro) {
  return R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": )" + std::to_string(micro) +
         R"(, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "data": {"shuffle": false},
          "zero_optimization": {"stage": )" +
         std::to_string(stage) +
         R"(, "stage3_param_persistence_threshold": 0}, "trainer": {"max_steps": 3}, "run": {"threads_per_rank": 1}})";
}

json::Value last_error() {
  return json::parse_strict(tessera_last_error(), "the last error");
}

std::vector<double> losses_of(tessera_session* session, int steps) {
  std::vector<double> out;
  for (int step = 0; step < steps; ++step) {
    const char* report = nullptr;
    EXPECT_EQ(tessera_step(session, &report), 0) << tessera_last_error();
    out.push_back(json::parse_strict(report, "a report").find("loss")->as_double());
  }
  return out;
}

TEST(CApi, ACallersBlocksLearnAsByPlainGradientDescentInEveryStage) {
  for (const int stage : {0, 3}) {
    SCOPED_TRACE(stage);
    Caller caller;
    const std::vector<double> expected = caller.descend(3, 8, 0.1);
    const std::size_t uses = caller.uses_of_first_weights();
    tessera_session* session = nullptr;
    ASSERT_EQ(caller.open(config(stage, 2), &session), 0) << tessera_last_error();

    EXPECT_EQ(caller.uses_of_first_weights(), uses);
    const std::vector<double> losses = losses_of(session, 3);

    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], kClose);
    int32_t code = -1;
    EXPECT_EQ(tessera_finish(session, &code), 0);
    EXPECT_EQ(code, 0);
    tessera_close(session);
  }
}

TEST(CApi, GatheringAndEvaluatingCallEveryBlock) {
  Caller caller;
  tessera_session* session = nullptr;
  ASSERT_EQ(caller.open(config(3, 2), &session), 0) << tessera_last_error();

  EXPECT_EQ(tessera_gather(session), 0) << tessera_last_error();
  const char* report = nullptr;
  EXPECT_EQ(tessera_evaluate(session, &report), 0) << tessera_last_error();
  const double loss = json::parse_strict(report, "a report").find("loss")->as_double();

  EXPECT_THAT(caller.gathered, ::testing::ElementsAre("in", "out"));
  // The validation set is the same first eight samples.
  EXPECT_NEAR(loss, caller.descend(1, 8, 0.1)[0], kClose);
  EXPECT_EQ(json::parse_strict(report, "a report").find("evaluations")->as_integer(), 1);
  tessera_close(session);
}

TEST(CApi, AllRanksHaveTheBytesOfAll) {
  Caller caller;
  tessera_session* session = nullptr;
  ASSERT_EQ(caller.open(config(0, 4), &session), 0) << tessera_last_error();
  const void* all = nullptr;
  std::int64_t size = -1;

  ASSERT_EQ(tessera_all_gather(session, "a\0b", 3, &all, &size), 0) << tessera_last_error();
  EXPECT_EQ(std::string(static_cast<const char*>(all), static_cast<std::size_t>(size)),
            std::string("a\0b", 3));
  ASSERT_EQ(tessera_all_gather(session, nullptr, 0, &all, &size), 0) << tessera_last_error();
  EXPECT_EQ(size, 0);
  tessera_close(session);
}

TEST(CApi, ACheckpointHasTheCallersNamesAndContinues) {
  const files::TempDir folder;
  Caller caller;
  const std::vector<double> expected = caller.descend(3, 8, 0.1);
  tessera_session* session = nullptr;
  ASSERT_EQ(caller.open(config(0, 4), &session), 0);
  losses_of(session, 2);
  const char* saved = nullptr;
  ASSERT_EQ(tessera_save(session, folder.path().c_str(), &saved), 0) << tessera_last_error();
  tessera_close(session);

  Caller other;
  ASSERT_EQ(other.open(config(3, 2), &session), 0);
  ASSERT_EQ(tessera_load(session, folder.path().c_str()), 0) << tessera_last_error();
  EXPECT_NEAR(losses_of(session, 1)[0], expected[2], kClose);
  tessera_close(session);
  EXPECT_EQ(other.open(config(0, 2), &session), 0);
  EXPECT_EQ(tessera_load(session, (folder.path() / "none").c_str()), 4);
  EXPECT_THAT(last_error().find("what")->as_string(), HasSubstr("contains no checkpoint"));
  tessera_close(session);
}

TEST(CApi, ErrorsOfTheCallerAndOfTheConfigurationAreSaid) {
  Caller caller;
  tessera_session* session = nullptr;
  ASSERT_EQ(caller.open(config(0, 2), &session), 0);
  caller.fails = true;
  const char* report = nullptr;
  EXPECT_EQ(tessera_step(session, &report), 2);
  EXPECT_THAT(last_error().find("what")->as_string(), HasSubstr("no more paper"));
  tessera_close(session);

  const struct {
    const char* written;
    const char* said;
  } kCases[] = {
      {R"({"optimizer": {"type": "AdamX"}})", "AdamX"},
      {R"({"train_batch_size": 8, "tokenizer": {"type": "bytes"}})", "tokenizer"},
      {R"({"train_batch_size": 8, "data": {"train": "a.txt"}})", "data.train"},
      {R"({"train_batch_size": 8, "model": {"num_layers": 1}})", "model"},
  };
  for (const auto& [written, said] : kCases) {
    SCOPED_TRACE(written);
    EXPECT_EQ(Caller().open(written, &session), 2);
    EXPECT_THAT(last_error().find("what")->as_string(), HasSubstr(said));
  }
}

}  // namespace
}  // namespace tessera::api
