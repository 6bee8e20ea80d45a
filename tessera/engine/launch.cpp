// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/launch.h"

#include <csignal>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/foreign_error.h"
#include "tessera/base/log.h"
#include "tessera/comm/registry.h"
#include "tessera/engine/kernel_threads.h"
#include "tessera/engine/rank_in_process.h"
#include "tessera/hosts/coordinator_client.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/hosts/join_hosts.h"
#include "tessera/launch/run_rank.h"
#include "tessera/memory/caching_allocator.h"
#include "tessera/memory/device.h"
#include "tessera/ops/gpu/attention_kernel.h"
#include "tessera/planner/course.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/values.h"

namespace tessera::engine {
namespace {

/// Time for all ranks of a job to connect with each other.
constexpr double kConnectSeconds = 60.0;

/// How ranks compute and exchange data.
struct Means {
  std::string device = "cpu";  ///< run.device
  std::string link = "auto";   ///< run.transport
  ops::AttentionKernel attention = ops::AttentionKernel::Deterministic;
};

/// The control page of a rank without a supervisor, for the life of the process.
ControlPage* own_page() {
  static const std::shared_ptr<ControlPage> page = comm::private_control_page(1);
  return page.get();
}

std::unique_ptr<comm::World> make_world(const launch::RankInfo& info,
                                        const hosts::HostPart* part,
                                        const mesh::Mesh& mesh,
                                        const Means& means) {
  const Device device =
      memory::device_of_rank(means.device, info.local_rank, info.local_world_size);
  memory::device_entry(device.kind).enter(device);
  ops::set_attention_kernel(means.attention);
  if (info.control < 0 && device.kind == DeviceKind::Cpu) return comm::solo_world();
  return comm::make_world(
      {.info = info,
       .part = part,
       .mesh = mesh,
       .device = device,
       .link = means.link,
       .connect_s = kConnectSeconds},
      info.control < 0 ? own_page() : launch::map_control(info.control, info.world_size));
}

launch::Options options_of(const mesh::Mesh& mesh, int threads, const Report& report) {
  launch::Options options;
  options.ranks = mesh.size();
  options.threads_per_rank = threads;
  options.report = report;
  options.notice = [](const std::string& text) { log::warn(text); };
  return options;
}

/// Returns what connects this host to the others: an agent, or a host that was started by hand,
/// meets them at the coordinator; under a launcher, rank 0 is the coordinator.
launch::ConnectToJob connection_of(const std::shared_ptr<const hosts::HostPart>& part,
                                   const HowToStart& how,
                                   bool under_launcher) {
  const double timeout_s = launch::Options().join_timeout_s;
  return [=, &how]() -> std::unique_ptr<launch::JobConnection> {
    if (under_launcher) return hosts::join_hosts(*part, how.facts, timeout_s, how.folder);
    return std::make_unique<hosts::CoordinatorClient>(part, how.facts, timeout_s, how.folder);
  };
}

/// Throws if the threads for `threads` cannot be started. Otherwise libtorch's own pool would wait
/// forever for a thread that it could not start, and OpenMP would end the process.
void require_threads(int threads) {
  const int each = threads - 1;
  std::mutex gate;
  std::vector<std::jthread> held;
  const std::lock_guard closed(gate);  // unlocked before they are joined
  try {
    for (int i = 0; i < 2 * each; ++i)
      held.emplace_back([&gate] { const std::lock_guard opened(gate); });
  } catch (const std::system_error& error) {
    throw Error(
        Error::Kind::Environment,
        fmt::format("cannot start {} more threads ({} for libtorch's pool and as many for "
                    "OpenMP's): {}",
                    2 * each,
                    each,
                    error.what()),
        "raise the limit on processes (ulimit -u, or the container's) or on address space (ulimit "
        "-v), or lower run.threads_per_rank");
  }
}

int run(launch::Options options,
        const HowToStart& how,
        const mesh::Mesh& mesh,
        const Means& means,
        const std::function<int(comm::World&)>& fn) {
  const std::optional<launch::Launcher> launcher = hosts::detect_launcher();
  const std::shared_ptr<const hosts::HostPart> part =
      launcher && launcher->several_hosts() ? hosts::part_of(*launcher) : how.part;
  options.part = part;
  if (part != nullptr) options.connect = connection_of(part, how, launcher.has_value());
  const auto body = [&](const launch::RankInfo& info) {
    try {
      prepare_process(info.threads);
      const std::unique_ptr<comm::World> world = make_world(info, part.get(), mesh, means);
      return fn(*world);
    } catch (...) {
      rethrow_as_error();
    }
  };
  if (launcher) return launch::run_rank(launch::join_launcher(*launcher, options), body);
  require_no_kernel_threads();
  return launch::launch(options, body);
}

}  // namespace

void rethrow_as_error() {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    throw Error(Error::Kind::Memory,
                error.what_without_backtrace(),
                "use a smaller micro-batch or a shorter sequence, recompute activations "
                "(activation_checkpointing), or shard more (zero_optimization.stage 3)");
  } catch (const c10::Error& error) {
    throw foreign_error(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    throw Error(
        Error::Kind::Memory, "out of memory", "use a smaller micro-batch or a shorter sequence");
  }
}

std::unique_ptr<comm::World> world_in_process(const InProcess& how) {
  if (how.caching_allocator) memory::install_caching_allocator();
  require_threads(how.threads);
  at::set_num_threads(how.threads);
  return comm::solo_world();
}

int ranks_of_process() {
  const std::optional<launch::Launcher> launcher = hosts::detect_launcher();
  return launcher ? launcher->world_size : 1;
}

int rank_of_process() {
  const std::optional<launch::Launcher> launcher = hosts::detect_launcher();
  return launcher ? launcher->rank : 0;
}

RankInProcess::RankInProcess(const planner::Plan& plan,
                             const Agreement& agreement,
                             launch::Report report) {
  const int threads = planner::threads_of(plan);
  const std::optional<launch::Launcher> launcher = hosts::detect_launcher();
  if (!launcher) {
    world_ = world_in_process({.threads = threads});
    return;
  }
  if (launcher->several_hosts()) part_ = hosts::part_of(*launcher);
  launch::Options options = options_of(plan.mesh(), threads, std::move(report));
  options.asked = asked_of(plan) ^ agreement.asked;
  options.messages = training_messages();
  options.part = part_;
  // It is used only until the ranks have met.
  const HowToStart how{.part = part_, .folder = agreement.folder, .facts = agreement.facts};
  if (part_ != nullptr) options.connect = connection_of(part_, how, /*under_launcher=*/true);
  info_ = launch::join_launcher(*launcher, options);
  control_ = launch::begin_rank(info_);
  try {
    require_threads(info_.threads);
    at::set_num_threads(info_.threads);
    world_ =
        make_world(info_, part_.get(), plan.mesh(), Means{.link = plan.run().options.transport});
  } catch (const Error& error) {
    fail(error);
    throw;
  }
}

void RankInProcess::fail(const Error& error) {
  if (failed_ != 0) return;
  failed_ = exit_code(error.kind());
  if (control_ != nullptr) launch::break_world(info_, control_, error);
}

int RankInProcess::end(int code) {
  if (failed_ != 0) code = failed_;
  return control_ == nullptr ? code : launch::end_rank(info_, control_, code);
}

void prepare_process(int threads) {
  // Writing beyond the file size limit then fails that write instead of ending the process.
  std::signal(SIGXFSZ, SIG_IGN);
  memory::install_caching_allocator();
  require_threads(threads);
  at::set_num_threads(threads);
}

void log_failure(const std::vector<std::string>& lines, int /*exit_code*/) {
  for (const std::string& line : lines)
    log::error(line);
}

launch::Messages training_messages() {
  launch::Messages words;
  words.again = "start it again: it goes on from the newest complete checkpoint";
  words.less_memory =
      "use a smaller train_micro_batch_size_per_gpu with more gradient_accumulation_steps, fewer "
      "ranks (-n), or a higher memory limit";
  words.stopping = "stopping after this step, then saving; once more stops at once without saving";
  words.unsaved = "the steps since the newest complete checkpoint are not saved";
  return words;
}

namespace {

std::uint64_t asked_of(const planner::Plan& plan, std::int64_t steps) {
  json::Value asked = plan.resolved();
  // A launcher may give its ranks different numbers of cores.
  if (json::Value* const run = asked.find("run")) {
    std::erase_if(run->members(), [](const json::Value::Member& member) {
      return member.first == "threads_per_rank" || member.first == "derived";
    });
  }
  const std::string text = fmt::format("{} steps {}", steps, asked.dump());
  return files::xxh3(std::as_bytes(std::span(text)));
}

int run_planned(const planner::Plan& plan,
                std::uint64_t asked,
                const Report& report,
                const std::function<int(comm::World&)>& fn,
                const launch::Messages& words,
                const HowToStart& how) {
  const mesh::Mesh mesh = how.further_ranks == 0
                              ? plan.mesh()
                              : mesh::Mesh::data_parallel(plan.ranks() + how.further_ranks);
  launch::Options options = options_of(mesh, planner::threads_of(plan), report);
  options.asked = asked;
  options.messages = words;
  options.local = how.local;
  options.stop_asked = how.stop_asked;
  if (how.part) options.ranks = how.part->local_ranks;
  options.asked ^= how.asked;
  const planner::RunOptions& asked_for = plan.run().options;
  return run(std::move(options),
             how,
             mesh,
             {asked_for.device, asked_for.transport, asked_for.attention_kernel},
             fn);
}

}  // namespace

std::uint64_t asked_of(const planner::Plan& plan) {
  return asked_of(plan, /*steps=*/0);
}
std::uint64_t asked_of(const planner::PlanWithData& plan) {
  return asked_of(plan, plan.course().max_steps);
}

int run_ranks(const planner::Plan& plan,
              const Report& report,
              const std::function<int(comm::World&)>& fn,
              const launch::Messages& words,
              const HowToStart& how) {
  return run_planned(plan, asked_of(plan), report, fn, words, how);
}

int run_ranks(const planner::PlanWithData& plan,
              const Report& report,
              const std::function<int(comm::World&)>& fn,
              const launch::Messages& words,
              const HowToStart& how) {
  return run_planned(plan, asked_of(plan), report, fn, words, how);
}

int run_ranks(const mesh::Mesh& mesh,
              int threads,
              const Report& report,
              const std::function<int(comm::World&)>& fn,
              const std::string& link,
              const std::string& device) {
  launch::Options options = options_of(mesh, threads, report);
  options.stops_at_once = true;
  return run(std::move(options), {}, mesh, {.device = device, .link = link}, fn);
}

}  // namespace tessera::engine
