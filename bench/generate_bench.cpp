// SPDX-License-Identifier: Apache-2.0
// Measures greedy generation with a GPT-2-shaped model and random weights, for run_generate.sh.
//
//   generate_bench [--preset gpt2-small] [--threads 2] [--weights bf16] [--batch 1] [--prompt 64]
//     [--new 128] [--reps 3] [--vocab 50304] [--operations 0]
//
// Prints one JSON line: tokens_per_s (median over the repetitions: tokens of all sequences after
// the first / time), prefill_ms, weight_gbs (bytes of the weights x passes over them per second),
// read_gbs (rate at which all threads read 256 MiB) and the ratio of the two. --operations 1 prints
// the time of each operation of one decoded token on standard error.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/config/json.h"
#include "tessera/engine/open_model.h"
#include "tessera/interop/weights_of.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/op_log.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/tensor/init.h"

namespace {

namespace engine = tessera::engine;
namespace nn = tessera::nn;

struct Asked {
  std::string preset = "gpt2-small", weights = "bf16", vocab = "50304";
  int threads = 2, reps = 3;
  std::int64_t batch = 1, prompt = 64, fresh = 128;
  bool operations = false;
};

Asked read(int argc, char** argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2)
    given[argv[i]] = argv[i + 1];
  const auto option = [&](const char* name, const std::string& fallback) {
    const auto it = given.find(name);
    return it == given.end() ? fallback : it->second;
  };
  Asked out;
  out.preset = option("--preset", out.preset);
  out.weights = option("--weights", out.weights);
  out.vocab = option("--vocab", out.vocab);
  out.threads = std::stoi(option("--threads", "2"));
  out.reps = std::stoi(option("--reps", "3"));
  out.batch = std::stoll(option("--batch", "1"));
  out.prompt = std::stoll(option("--prompt", "64"));
  out.fresh = std::stoll(option("--new", "128"));
  out.operations = option("--operations", "0") != "0";
  return out;
}

engine::OpenModel model_of(const Asked& asked) {
  const std::string text = fmt::format(
      R"({{"model": {{"preset": "{}", "vocab_size": {}}}, "tokenizer": {{"type": "gpt2"}},
          "data": {{"train": "none"}}, "train_batch_size": 1}})",
      asked.preset,
      asked.vocab);
  const tessera::planner::Plan plan = tessera::planner::make_plan(
      tessera::json::parse(text, "generate_bench"), 1, "generate_bench");
  engine::OpenModel out;
  out.shape = plan.model().resolved;
  out.tokenizer = plan.data().tokenizer;
  out.weights =
      [](const tessera::ParamInfo& info, std::int64_t begin, std::int64_t end, float* to) {
        tessera::initialize_range(info, 1, begin, at::from_blob(to, {end - begin}, at::kFloat));
      };
  return out;
}

nn::Batch batch_of(const at::Tensor& ids_BT) {
  nn::Batch out;
  out.set("input_ids", ids_BT);
  for (std::int64_t i = 0; i < ids_BT.size(0); ++i)
    out.sample_ids.push_back(i);
  return out;
}

at::Tensor random_ids(const Asked& asked) {
  at::Tensor ids = at::empty({asked.batch, asked.prompt}, at::kLong);
  for (std::int64_t i = 0; i < ids.numel(); ++i)
    ids.data_ptr<std::int64_t>()[i] = tessera::Philox{3}(static_cast<std::uint64_t>(i))[0] % 50257;
  return ids;
}

struct Timed {
  double prefill_s = 0, decode_s = 0;
};

Timed generate(engine::OpenModel& model, const Asked& asked, const at::Tensor& prompt) {
  nn::StepContext context(nn::Mode::Prefill, 1);
  context.cache_capacity = asked.prompt + asked.fresh;
  const auto next = [&](const at::Tensor& ids) {
    const nn::Outcome out = model.executor->infer(batch_of(ids), context);
    return out.outputs.at("logits").select(1, -1).argmax(1, /*keepdim=*/true);
  };
  Timed out;
  const double begin = tessera::now_s();
  at::Tensor ids = next(prompt);
  out.prefill_s = tessera::now_s() - begin;
  context.set_mode(nn::Mode::Decode);
  for (std::int64_t i = 0; i + 1 < asked.fresh; ++i) {
    context.position = asked.prompt + i;
    ids = next(ids);
  }
  out.decode_s = tessera::now_s() - begin - out.prefill_s;
  return out;
}

double read_bytes_per_s() {
  const at::Tensor x = at::ones({std::int64_t{1} << 26});
  double best = 1e9;
  for (int i = 0; i < 6; ++i) {
    const double begin = tessera::now_s();
    static_cast<void>(x.sum());
    best = std::min(best, tessera::now_s() - begin);
  }
  return static_cast<double>(x.nbytes()) / best;
}

void tell_operations(engine::OpenModel& model, Asked asked, const at::Tensor& prompt) {
  asked.fresh = 33;
  const tessera::ops::OpLog log;
  const Timed timed = generate(model, asked, prompt);
  const double tokens = static_cast<double>(asked.fresh - 1);
  fmt::print(stderr,
             "{:.3f} ms a token; of {} tokens and the prompt:\n",
             1e3 * timed.decode_s / tokens,
             tokens);
  for (const tessera::ops::OpRow& row : log.rows()) {
    fmt::print(stderr,
               "{:<24} {:<32} {:>7} {:>9.3f} ms {:>8.1f} GB/s\n",
               row.name,
               row.shape,
               row.calls,
               1e3 * row.seconds,
               row.bytes / row.seconds / 1e9);
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int run(const Asked& asked) {
  const engine::ReadAs as = engine::read_as_from_name(asked.weights);
  engine::OpenModel model = model_of(asked);
  engine::load_model(model, asked.threads, as);
  std::int64_t parameters = 0;
  for (const auto& param : tessera::nn::parameters_of(model.shape.model))
    parameters += param->numel();
  const double width = as == engine::ReadAs::F32 ? 4 : as == engine::ReadAs::BF16 ? 2 : 1;
  const at::Tensor prompt = random_ids(asked);
  std::vector<double> rates, prefill_ms;
  for (int i = 0; i <= asked.reps; ++i) {  // the first run is a warm-up
    const Timed timed = generate(model, asked, prompt);
    if (i == 0) continue;
    rates.push_back(static_cast<double>(asked.batch * (asked.fresh - 1)) / timed.decode_s);
    prefill_ms.push_back(1e3 * timed.prefill_s);
  }
  const double passes = median(rates) / static_cast<double>(asked.batch);
  const double weights = passes * static_cast<double>(parameters) * width,
               read = read_bytes_per_s();
  fmt::print(
      R"({{"what": "tessera_generate", "weights": "{}", "threads": {}, "batch": {}, "prompt": {}, "new": {}, "tokens_per_s": {:.2f}, )"
      R"("all": [{:.2f}], "prefill_ms": {:.1f}, "weight_gbs": {:.2f}, "read_gbs": {:.2f}, "of_read": {:.3f}}})"
      "\n",
      asked.weights,
      asked.threads,
      asked.batch,
      asked.prompt,
      asked.fresh,
      median(rates),
      fmt::join(rates, ", "),
      median(prefill_ms),
      weights / 1e9,
      read / 1e9,
      weights / read);
  if (asked.operations) tell_operations(model, asked, prompt);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(read(argc, argv));
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "%s\n", error.text().c_str());
    return tessera::exit_code(error.kind());
  }
}
