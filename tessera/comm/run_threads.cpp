// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/transports/threads.h"
#include "tessera/comm/watchdog.h"
#include "tessera/comm/world.h"
#include "tessera/memory/ledger.h"

namespace tessera::comm {
namespace {

void run_rank(World& world, const std::function<void(World&)>& fn, std::exception_ptr& failure) {
  memory::Ledger ledger;
  const memory::ScopedLedger scope(ledger);
  try {
    fn(world);
  } catch (const Error& error) {
    failure = std::current_exception();
    world.transport().abort(error);
  } catch (const std::exception& error) {
    failure = std::current_exception();
    world.transport().abort(Error(Error::Kind::Bug, error.what()));
  }
}

}  // namespace

void run_threads(const mesh::Mesh& mesh, const std::function<void(World&)>& fn) {
  const int ranks = mesh.size();
  const std::shared_ptr<ControlPage> control = private_control_page(ranks);
  auto transports = make_threads_transports(control.get());
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      threads.emplace_back([&, index, rank] {
        World world(rank, mesh, std::move(transports[index]), control);
        run_rank(world, fn, failures[index]);
      });
    }
  }
  if (control->aborted.load() == 0) return;
  if (const auto first = failures[control->abort_rank.load()]) std::rethrow_exception(first);
  throw_if_aborted(*control);
}

void run_threads(int ranks, const std::function<void(World&)>& fn) {
  run_threads(mesh::Mesh::data_parallel(ranks), fn);
}

}  // namespace tessera::comm
