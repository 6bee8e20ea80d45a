// SPDX-License-Identifier: Apache-2.0
// Data-parallel pretraining in the manner of a hand-written PyTorch DDP script, with the same loop,
// numbers and printed lines.
//
// kUsage below lists the options.
//
// Differences from such a script: ranks are processes of one host (`tessera train` also has several
// hosts), and gradients are summed over shared memory instead of a ring. Rank 0 writes
// model_000005.pth and optimizer_000005.pth, as the script does, beside a folder of safetensors,
// "step-00000005", which contains model and optimizer, can be loaded on any number of ranks, and is
// what --resume reads.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/evaluate.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/trainer.h"
#include "tessera/interop/foreign_write.h"
#include "tessera/interop/model_export.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"

namespace {

using namespace tessera;  // NOLINT: an example reads better so

constexpr std::int64_t kEvalBatches = 1;   // eval_iter
constexpr std::int64_t kIgnoredSteps = 2;  // excluded from the throughput, because caches are cold

constexpr const char* kUsage =
    "ddp_pretrain [--data FOLDER_OR_TEXT] [--world_size 4] [--preset gpt2-small] [--context 1024]\n"
    "             [--batch 2] [--epochs 10] [--max_steps N] [--eval_freq 5] [--save_freq 5]\n"
    "             [--checkpoint_dir checkpoint] [--resume INDEX]\n";

std::int64_t number_of(const std::string& option, const std::string& word) {
  std::int64_t value = 0;
  const char* const end = word.data() + word.size();
  const auto read = std::from_chars(word.data(), end, value);
  TESSERA_REQUIRE(read.ec == std::errc() && read.ptr == end && value >= 0,
                  Config,
                  fmt::format("{} {} is not a number", option, word),
                  "ddp_pretrain --help");
  return value;
}

struct Options {
  std::string data = "examples/data/shakespeare.txt", preset = "gpt2-small",
              checkpoint_dir = "checkpoint";
  std::int64_t world_size = 4, context = 1024, batch = 2, epochs = 10, max_steps = 0, eval_freq = 5,
               save_freq = 5, resume = -1;
};

Options read_options(int argc, char** argv) {
  Options o;
  const std::map<std::string, std::string*> words = {
      {"--data", &o.data}, {"--preset", &o.preset}, {"--checkpoint_dir", &o.checkpoint_dir}};
  const std::map<std::string, std::int64_t*> numbers = {{"--world_size", &o.world_size},
                                                        {"--context", &o.context},
                                                        {"--batch", &o.batch},
                                                        {"--epochs", &o.epochs},
                                                        {"--max_steps", &o.max_steps},
                                                        {"--eval_freq", &o.eval_freq},
                                                        {"--save_freq", &o.save_freq},
                                                        {"--resume", &o.resume}};
  for (int i = 1; i < argc; i += 2) {
    const std::string key = argv[i];
    TESSERA_REQUIRE((words.count(key) + numbers.count(key)) > 0 && i + 1 < argc,
                    Config,
                    "unknown or unfinished option " + key,
                    "ddp_pretrain --help");
    if (words.count(key) > 0) *words.at(key) = argv[i + 1];
    if (numbers.count(key) > 0) *numbers.at(key) = number_of(key, argv[i + 1]);
  }
  return o;
}

/// GPT-2 small without query, key and value biases, vocabulary 50257, dropout 0.1; AdamW with decay
/// on everything; warm-up to the peak rate and a cosine below it; clipping once the warm-up is
/// over.
planner::Plan make_plan(const Options& o) {
  json::Value c = json::Value::object();
  c["model"]["preset"] = json::Value::string(o.preset);
  c["model"]["vocab_size"] = json::Value::integer(50257);
  c["model"]["max_positions"] = json::Value::integer(o.context);
  c["model"]["dropout"] = json::Value::number(0.1);
  c["model"]["qkv_bias"] = json::Value::boolean(false);
  c["tokenizer"]["type"] = json::Value::string("gpt2");
  c["data"]["train"] = json::Value::string(o.data);
  c["data"]["sequence_length"] = json::Value::integer(o.context);
  c["data"]["stride"] = json::Value::integer(o.context);
  c["data"]["validation_fraction"] = json::Value::number(0.1);
  c["train_micro_batch_size_per_gpu"] = json::Value::integer(o.batch);
  c["gradient_accumulation_steps"] = json::Value::integer(1);
  c["optimizer"]["params"]["lr"] = json::Value::number(6e-4);
  c["optimizer"]["params"]["weight_decay"] = json::Value::number(0.1);
  c["optimizer"]["decay_all"] = json::Value::boolean(true);
  c["scheduler"]["type"] = json::Value::string("WarmupCosine");
  c["scheduler"]["params"]["warmup_num_steps"] = json::Value::integer(10);
  c["scheduler"]["params"]["initial_lr"] = json::Value::number(3e-5);
  c["scheduler"]["params"]["min_lr"] = json::Value::number(1e-6);
  c["gradient_clipping"] = json::Value::number(1.0);
  c["trainer"]["seed"] = json::Value::integer(123);
  c["trainer"]["epochs"] = json::Value::integer(o.epochs);
  c["trainer"]["clip_after_warmup"] = json::Value::boolean(true);
  if (o.max_steps > 0) c["trainer"]["max_steps"] = json::Value::integer(o.max_steps);
  c["eval"]["batches"] = json::Value::integer(kEvalBatches);
  c["eval"]["micro_batch"] = json::Value::integer(o.batch);
  c["eval"]["prompt"] = json::Value::string("Every effort moves you");
  c["eval"]["max_new_tokens"] = json::Value::integer(50);
  c["eval"]["top_k"] = json::Value::integer(1);
  return planner::make_plan(c, static_cast<int>(o.world_size), "ddp_pretrain");
}

/// The curves to plot, which the loop returns.
struct Tracks {
  std::vector<double> train_losses, val_losses, lrs;
  std::vector<std::int64_t> tokens_seen;
};

/// The training loop: prints one line per batch and rank; losses and a sample every eval_freq
/// steps, a checkpoint every save_freq steps, and both at the end of an epoch.
class Pretrain final : public engine::Hook {
 public:
  Pretrain(const Options& options, Tracks& tracks)
      : Hook(kReport), options_(options), tracks_(tracks) {}
  [[nodiscard]] std::string_view name() const override { return "ddp-pretrain"; }

  void after_train_iter(engine::Trainer& trainer, const engine::StepReport& report) override {
    engine::Engine& engine = trainer.engine();
    tracks_.lrs.push_back(report.lr);
    std::printf("[GPU%d] Epoch %d (Batch %06ld): Train loss %.3f\n",
                engine.world().rank(),
                static_cast<int>(report.epoch) + 1,
                static_cast<long>(report.step),
                report.loss);
    if (report.step % options_.eval_freq == 0) evaluate(engine, report);
    if (report.step % options_.save_freq == 0) save(engine);
  }
  void after_train_epoch(engine::Trainer& trainer) override {
    const engine::StepReport& last = *trainer.last();
    if (last.step % options_.eval_freq != 0) evaluate(trainer.engine(), last);
    if (last.step % options_.save_freq != 0) save(trainer.engine());
  }

 private:
  /// All ranks write their parts of the folder, and the first one the two files of torch.
  void save(engine::Engine& engine) {
    const std::filesystem::path saved = engine.save(options_.checkpoint_dir);
    if (!engine.world().is_leader()) return;
    interop::Foreign training = interop::open_training_export(saved);
    interop::order_by_module(training);
    const auto file = [&](const char* what) {
      std::filesystem::path path = std::filesystem::path(options_.checkpoint_dir) /
                                   fmt::format("{}_{:06d}.pth", what, engine.step());
      std::filesystem::remove(path);
      return path;
    };
    interop::write_torch_loop(file("model"), file("optimizer"), training, [](std::uint64_t) {});
  }

  void evaluate(engine::Engine& engine, const engine::StepReport& report) {
    engine.pause_clock();
    const data::Dataset& train = *engine.data().train;
    const std::int64_t samples = std::min(train.size(), kEvalBatches * options_.batch);
    const double train_loss =
        engine::evaluate(engine.executor(), engine.world(), train, samples, options_.batch).loss;
    const double val_loss = engine.evaluate().loss;
    const std::string sample = engine.sample();
    tracks_.train_losses.push_back(train_loss);
    tracks_.val_losses.push_back(val_loss);
    tracks_.tokens_seen.push_back(report.tokens);
    if (engine.world().is_leader()) {
      std::printf("Step %06ld: Train loss %.3f, Val loss %.3f, tokens seen %ld\n%s\n",
                  static_cast<long>(report.step),
                  train_loss,
                  val_loss,
                  static_cast<long>(report.tokens),
                  sample.c_str());
    }
    engine.resume_clock();
  }
  const Options& options_;
  Tracks& tracks_;
};

Tracks pretrain_model(const planner::Plan& plan, const Options& options, comm::World& world) {
  const auto engine = engine::initialize(plan, world);
  if (options.resume >= 0) {
    const std::filesystem::path folder =
        std::filesystem::path(options.checkpoint_dir) / fmt::format("step-{:08d}", options.resume);
    engine->load(checkpoint::Checkpoint(folder));
  }
  Tracks tracks;
  engine::Trainer trainer(*engine);
  auto throughput = std::make_unique<engine::ThroughputHook>(kIgnoredSteps);
  const engine::ThroughputHook& speed = *throughput;
  trainer.attach(std::move(throughput));
  trainer.attach(std::make_unique<Pretrain>(options, tracks));
  trainer.fit();
  if (world.is_leader()) {
    std::printf("%.1f tokens/s (the first %ld steps not counted)\n",
                speed.tokens_per_s(),
                static_cast<long>(kIgnoredSteps));
  }
  return tracks;
}

int run(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // so that the lines of several ranks appear at once
  const Options options = read_options(argc, argv);
  const planner::Plan plan = make_plan(options);
  std::printf(
      "tessera on libtorch 2.11.0; CUDA available: no (there is no GPU build yet); GPUs: 0\n");
  std::printf("one host: a second server is not built yet\n");
  std::printf("checkpoints: %s/model_NNNNNN.pth, optimizer_NNNNNN.pth and step-NNNNNNNN\n",
              options.checkpoint_dir.c_str());
  std::filesystem::create_directories(options.checkpoint_dir);
  const auto report = [](const std::vector<std::string>& lines, int /*exit_code*/) {
    for (const std::string& line : lines)
      std::fprintf(stderr, "%s\n", line.c_str());
  };
  return engine::run_ranks(plan, report, [&](comm::World& world) {
    const Tracks tracks = pretrain_model(plan, options, world);
    if (world.is_leader() && !tracks.lrs.empty())
      std::printf("last learning rate %.3e\n", tracks.lrs.back());
    std::fflush(stdout);
    return 0;
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.text().c_str());
    return exit_code(error.kind());
  }
}
