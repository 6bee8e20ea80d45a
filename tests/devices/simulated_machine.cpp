// SPDX-License-Identifier: Apache-2.0
#include "devices/simulated_machine.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera::test {
namespace {

bool meet(const Flight& flight, const OrderChecker::Range& pinned) {
  return flight.pinned < pinned.begin + pinned.bytes &&
         pinned.begin < flight.pinned + flight.bytes.size();
}

}  // namespace

bool Machine::show_arrived(int stream, const OrderChecker::Range& pinned) {
  const std::lock_guard lock(mutex);
  bool any = false;
  for (const Flight& flight : flights) {
    if (!flight.to_host || !meet(flight, pinned)) continue;
    if (order.knows(stream, flight.work)) {
      std::memcpy(flight.pinned, flight.bytes.data(), flight.bytes.size());
      any = true;
    } else {
      violations.emplace_back(
          "a copy to the device reads pinned memory without waiting for the copy that fills it");
    }
  }
  return any;
}

void Machine::hide_arrived(int stream, const OrderChecker::Range& pinned) {
  const std::lock_guard lock(mutex);
  for (const Flight& flight : flights) {
    if (flight.to_host && meet(flight, pinned) && order.knows(stream, flight.work))
      std::memset(flight.pinned, 0xff, flight.bytes.size());
  }
}

void Machine::write_over(int stream, const OrderChecker::Range& pinned) {
  const std::lock_guard lock(mutex);
  std::erase_if(flights, [&](const Flight& flight) {
    if (!meet(flight, pinned)) return false;
    if (!order.knows(stream, flight.work)) {
      violations.emplace_back(
          "a copy to the host writes over pinned memory without waiting for the copy before");
    } else if (!flight.to_host) {
      land(flight);
    }
    return true;
  });
}

void Machine::complete(int stream, std::int64_t until) {
  if (num_pending == 0) return;
  std::shared_ptr<Pending> of_stream;
  {
    const std::lock_guard lock(mutex);
    const auto found = pending.find(stream);
    if (found == pending.end()) return;
    of_stream = found->second;
  }
  const std::lock_guard completing(of_stream->completing);
  for (;;) {
    std::function<void()> next;
    {
      const std::lock_guard lock(mutex);
      if (of_stream->operations.empty() || of_stream->operations.front().number > until) return;
      next = of_stream->operations.front().complete;
    }
    next();
    const std::lock_guard lock(mutex);
    of_stream->operations.pop_front();
    --num_pending;
  }
}

void Machine::complete(const StreamClock& until) {
  for (const auto& [stream, number] : until)
    complete(stream, number);
}

bool Machine::is_complete(const StreamClock& until) {
  const std::lock_guard lock(mutex);
  return std::none_of(until.begin(), until.end(), [&](const auto& of) {
    const auto found = pending.find(of.first);
    return found != pending.end() && !found->second->operations.empty() &&
           found->second->operations.front().number <= of.second;
  });
}

bool Machine::is_pinned(const void* data) const {
  const auto* const at = static_cast<const std::byte*>(data);
  auto block = pinned.upper_bound(at);
  if (block == pinned.begin()) return false;
  --block;
  return at < block->first + block->second;
}

void Machine::land(const Flight& flight) {
  if (flight.to_host) {
    std::memcpy(flight.pinned, flight.bytes.data(), flight.bytes.size());
  } else if (!flight.through &&
             std::memcmp(flight.pinned, flight.bytes.data(), flight.bytes.size()) != 0) {
    violations.emplace_back("the host changed pinned memory while it was copied to the device");
  }
}

void Machine::synchronize(int host, const StreamClock& until, const std::string& what) {
  ++work.host_waits;
  ++work.waits[what];
  order.wait(host, until);
  std::erase_if(flights, [&](const Flight& flight) {
    if (flight.host != host || !order.knows(host, flight.work)) return false;
    land(flight);
    return true;
  });
}

Machine& machine() {
  static auto* const machine = new Machine;
  return *machine;
}

std::vector<std::string> take_violations() {
  const std::lock_guard lock(machine().mutex);
  std::vector<std::string> out = machine().order.take_violations();
  for (std::string& violation : std::exchange(machine().violations, {}))
    out.push_back(std::move(violation));
  return out;
}

SimulatedWork simulated_work() {
  const std::lock_guard lock(machine().mutex);
  return machine().work;
}

}  // namespace tessera::test
