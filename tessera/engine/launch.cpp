// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/launch.h"

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"
#include "tessera/comm/transports/shm.h"
#include "tessera/launch/launch.h"
#include "tessera/memory/caching_allocator.h"

namespace tessera::engine {
namespace {

Error as_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error;
  } catch (const c10::Error& error) {
    return {Error::Kind::Bug, error.what_without_backtrace(), ""};
  } catch (const std::bad_alloc&) {
    return {
        Error::Kind::Memory, "out of memory", "use a smaller micro-batch or a shorter sequence"};
  } catch (const std::exception& error) {
    return {Error::Kind::Bug, error.what(), ""};
  }
}

/// The body of one rank. Its failure is told on the control page first: that is what stops the
/// others.
int run_rank(const launch::RankInfo& info,
             const Report& report,
             const std::function<int(comm::World&)>& fn) {
  ControlPage* control =
      info.control >= 0 ? launch::map_control(info.control, info.world_size) : nullptr;
  std::unique_ptr<comm::World> world;
  try {
    prepare_process(info.threads);
    if (control == nullptr) {
      world = comm::solo_world();
    } else {
      world = std::make_unique<comm::World>(
          info.rank,
          mesh::Mesh::data_parallel(info.world_size),
          comm::make_shm_transport(info.rank, info.arenas, info.arena_bytes, control),
          control);
    }
    const int code = fn(*world);
    if (control != nullptr)
      control->line(info.rank).state.store(static_cast<std::uint32_t>(RankState::Finished));
    return code;
  } catch (...) {
    const Error error = as_error(std::current_exception());
    const bool first =
        control == nullptr ||
        control->abort(info.rank, static_cast<std::uint32_t>(error.kind()), error.text());
    if (control != nullptr)
      control->line(info.rank).state.store(static_cast<std::uint32_t>(RankState::Failed));
    if (first && control == nullptr && report) report({error.text()});
    // Whoever stops because another rank broke the world reports that rank's kind: the code is the
    // same.
    return exit_code(error.kind());
  }
}

}  // namespace

void prepare_process(int threads) {
  memory::install_caching_allocator();
  at::set_num_threads(threads);
}

int run_ranks(const planner::Plan& plan,
              const Report& report,
              const std::function<int(comm::World&)>& fn) {
  launch::Options options;
  options.ranks = plan.ranks;
  options.threads_per_rank = plan.threads;
  options.report = report;
  const auto body = [&](const launch::RankInfo& info) { return run_rank(info, report, fn); };
  if (const auto launcher = launch::detect_launcher())
    return body(launch::join_launcher(*launcher, options));
  return launch::launch(options, body);
}

}  // namespace tessera::engine
