// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/hostfile.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <set>
#include <utility>

#include <arpa/inet.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <unistd.h>

#include "tessera/base/bounded_file.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"

namespace tessera::hosts {
namespace {

constexpr std::uintmax_t kMostHostfileBytes = std::uintmax_t{16} << 20;
constexpr std::size_t kMostNameBytes = 255;  // most bytes of a name in DNS

std::optional<int> whole_number(std::string_view text) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool plain = !text.empty() && text.front() != '-';
  return plain && error == std::errc() && stop == text.data() + text.size() ? std::optional(value)
                                                                            : std::nullopt;
}

std::vector<int> first_slots(int count) {
  std::vector<int> slots;
  for (int i = 0; i < count; ++i)
    slots.push_back(i);
  return slots;
}

bool is_host_name(std::string_view name) {
  constexpr std::string_view kOthers = "._-:[]%@";
  return !name.empty() && name.size() <= kMostNameBytes && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), [&](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                  kOthers.find(c) != std::string_view::npos;
         });
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : line) {
    const bool blank = c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v';
    if (!blank) word += c;
    if (blank && !word.empty()) words.push_back(std::exchange(word, ""));
  }
  if (!word.empty()) words.push_back(word);
  return words;
}

/// The position of a line in a hostfile.
struct Place {
  const std::string& file;
  std::size_t line;
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Error::Kind::Config,
                fmt::format("{}:{}: {}", file, line, what),
                "write one host a line: node-0 slots=4");
  }
};

int slots_in(std::string_view digits, std::string_view name, const Place& place) {
  const std::optional<int> slots = whole_number(digits);
  if (!slots || *slots < 1 || *slots > kMostSlots) {
    place.refuse(fmt::format(
        "{} has \"{}\" slots; expected a number from 1 to {}", name, digits, kMostSlots));
  }
  return *slots;
}

/// Reads `name:4`, or a name alone. An address of IPv6 contains colons and has
/// slots only after a bracket: `[fe80::1]:4`.
HostSlots short_form(const std::string& word, const Place& place) {
  const std::size_t colon = word.rfind(':');
  const bool address =
      std::count(word.begin(), word.end(), ':') > 1 && (colon == 0 || word[colon - 1] != ']');
  if (colon == std::string::npos || address) return {word, first_slots(1), /*counted=*/false};
  const std::string name = word.substr(0, colon);
  return {name, first_slots(slots_in(std::string_view(word).substr(colon + 1), name, place))};
}

void add_host(HostPool& pool, std::set<std::string>& names, HostSlots host, const Place& place) {
  if (!is_host_name(host.name))
    place.refuse(fmt::format("\"{}\" is not the name or address of a host", host.name));
  if (!names.insert(host.name).second)
    place.refuse(fmt::format("host {} is named twice", host.name));
  if (pool.size() >= kMostHosts) place.refuse(fmt::format("more than {} hosts", kMostHosts));
  pool.push_back(std::move(host));
}

void add_line(HostPool& pool,
              std::set<std::string>& names,
              const std::vector<std::string>& words,
              const Place& place) {
  constexpr std::string_view kSlots = "slots=", kMaxSlots = "max_slots=", kMaxDashed = "max-slots=";
  if (words.size() == 1) {
    for (const std::string& word : text::split(words.front(), ','))
      add_host(pool, names, short_form(word, place), place);
    return;
  }
  std::optional<int> slots;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word.starts_with(kSlots) && !slots) {
      slots = slots_in(word.substr(kSlots.size()), words.front(), place);
    } else if (slots && (word.starts_with(kMaxSlots) || word.starts_with(kMaxDashed))) {
      const int most = slots_in(word.substr(kMaxSlots.size()), words.front(), place);
      if (most < *slots)
        place.refuse(fmt::format("{} has slots={} above {}", words.front(), *slots, word));
    } else {
      place.refuse(fmt::format("unknown word \"{}\" after {}", word, words.front()));
    }
  }
  add_host(pool, names, {words.front(), first_slots(*slots)}, place);
}

[[noreturn]] void refuse_filter(const std::string& what, const std::string& fix) {
  throw Error(Error::Kind::Config, what, fix);
}

constexpr const char* kGrammar = "for example: --include \"node-0@node-1:0,2\"";

/// The slots of `host` that a NODE names.
std::vector<int> slots_of(const HostSlots& host, std::string_view list, const std::string& typed) {
  std::vector<int> slots;
  for (const std::string& word : text::split(list, ',')) {
    const std::optional<int> slot = whole_number(word);
    if (!slot)
      refuse_filter(fmt::format("{}: \"{}\" is not the number of a slot", typed, word), kGrammar);
    if (std::find(host.slots.begin(), host.slots.end(), *slot) == host.slots.end()) {
      refuse_filter(fmt::format("{}: host {} has no slot {}", typed, host.name, *slot),
                    "its slots are " + describe({host}));
    }
    slots.push_back(*slot);
  }
  return slots;
}

/// Splits a filter at "@", and at the commas of a part that names no slots.
std::vector<std::string> nodes_of(const std::string& filter) {
  std::vector<std::string> nodes;
  for (const std::string& part : text::split(filter, '@')) {
    if (part.find(':') != std::string::npos) {
      nodes.push_back(part);
      continue;
    }
    for (std::string& name : text::split(part, ','))
      nodes.push_back(std::move(name));
  }
  return nodes;
}

/// Returns the slots that a filter names, for each host of the pool.
std::vector<std::set<int>> named_slots(const HostPool& pool,
                                       const std::string& filter,
                                       const std::string& flag) {
  const std::string typed = fmt::format("{} \"{}\"", flag, filter);
  std::vector<std::set<int>> named(pool.size());
  for (const std::string& node : nodes_of(filter)) {
    const std::string_view spec = text::trim(node);
    // The name of a host may be an IPv6 address: a host that equals the whole spec takes
    // precedence.
    std::size_t colon = spec.rfind(':');
    const auto with_name = [&](std::string_view name) {
      return std::find_if(
          pool.begin(), pool.end(), [&](const HostSlots& host) { return host.name == name; });
    };
    if (with_name(spec) != pool.end()) colon = std::string_view::npos;
    const std::string_view name = spec.substr(0, colon);
    if (name.empty()) refuse_filter(fmt::format("{}: a host is missing", typed), kGrammar);
    const auto host = with_name(name);
    if (host == pool.end()) {
      std::vector<std::string> names;
      for (const HostSlots& one : pool)
        names.push_back(one.name);
      refuse_filter(fmt::format("{}: there is no host {}", typed, name),
                    text::suggestion(name, names));
    }
    const std::vector<int> slots = colon == std::string_view::npos
                                       ? host->slots
                                       : slots_of(*host, spec.substr(colon + 1), typed);
    named[static_cast<std::size_t>(host - pool.begin())].insert(slots.begin(), slots.end());
  }
  return named;
}

void keep_first(HostPool& pool, const HostFilter& filter) {
  if (filter.num_nodes) {
    if (*filter.num_nodes < 1 || *filter.num_nodes > static_cast<int>(pool.size())) {
      refuse_filter(
          fmt::format("--num_nodes {}: there are {} hosts", *filter.num_nodes, pool.size()),
          fmt::format("choose 1 to {}", pool.size()));
    }
    pool.resize(static_cast<std::size_t>(*filter.num_nodes));
  }
  if (!filter.num_per_host) return;
  for (HostSlots& host : pool) {
    if (!host.counted && *filter.num_per_host >= 1 && *filter.num_per_host <= kMostSlots) {
      host.slots = first_slots(*filter.num_per_host);
      continue;
    }
    if (*filter.num_per_host < 1 || *filter.num_per_host > static_cast<int>(host.slots.size())) {
      refuse_filter(fmt::format("--num_gpus {}: host {} has {} slots",
                                *filter.num_per_host,
                                host.name,
                                host.slots.size()),
                    fmt::format("choose 1 to {}, or raise slots= of that host", host.slots.size()));
    }
    host.slots.resize(static_cast<std::size_t>(*filter.num_per_host));
  }
}

std::string ranges_of(const std::vector<int>& slots) {
  std::string text;
  for (std::size_t i = 0; i < slots.size();) {
    std::size_t end = i;
    while (end + 1 < slots.size() && slots[end + 1] == slots[end] + 1)
      ++end;
    text += text.empty() ? "" : ",";
    text += end == i ? fmt::format("{}", slots[i]) : fmt::format("{}-{}", slots[i], slots[end]);
    i = end + 1;
  }
  return text;
}

[[noreturn]] void refuse_list(std::string_view list, const std::string& why) {
  throw Error(Error::Kind::Config,
              fmt::format("the list of hosts \"{}\" {}", list.substr(0, 200), why),
              "expected, as Slurm writes it: node[01-16],login-1");
}

/// Splits at commas outside of brackets.
std::vector<std::string_view> items_of(std::string_view list) {
  std::vector<std::string_view> items;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '[') {
      if (inside) refuse_list(list, "has a bracket inside of brackets");
      inside = true;
    } else if (i < list.size() && list[i] == ']') {
      if (!inside) refuse_list(list, "has a closing bracket without an opening one");
      inside = false;
    } else if (i == list.size() || (list[i] == ',' && !inside)) {
      if (i == begin) refuse_list(list, "has an empty item");
      items.push_back(list.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  if (inside) refuse_list(list, "has a bracket that is never closed");
  return items;
}

std::vector<std::string> numbers_in(std::string_view ranges, std::string_view list) {
  std::vector<std::string> numbers;
  for (const std::string& range : text::split(ranges, ',')) {
    const std::size_t dash = range.find('-');
    const std::string low = range.substr(0, dash);
    const std::optional<int> from = whole_number(low);
    const std::optional<int> to =
        dash == std::string::npos ? from : whole_number(std::string_view(range).substr(dash + 1));
    if (!from || !to || *to < *from) refuse_list(list, fmt::format("has the range \"{}\"", range));
    if (numbers.size() + static_cast<std::size_t>(*to - *from) >= kMostHosts)
      refuse_list(list, fmt::format("has more than {} hosts", kMostHosts));
    for (int i = *from; i <= *to; ++i)
      numbers.push_back(fmt::format("{:0{}}", i, low.size()));
  }
  return numbers;
}

std::vector<std::string> expand_item(std::string_view item, std::string_view list) {
  std::vector<std::string> names = {""};
  while (!item.empty()) {
    const std::size_t open = item.find('[');
    const std::string_view plain = item.substr(0, open);
    for (std::string& name : names)
      name += plain;
    if (open == std::string_view::npos) break;
    const std::size_t close = item.find(']', open);
    const std::vector<std::string> numbers =
        numbers_in(item.substr(open + 1, close - open - 1), list);
    if (names.size() * numbers.size() > kMostHosts)
      refuse_list(list, fmt::format("has more than {} hosts", kMostHosts));
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& number : numbers)
        longer.push_back(name + number);
    }
    names = std::move(longer);
    item = item.substr(close + 1);
  }
  return names;
}

bool has_address(std::string_view name) {
  const std::string text(name);
  in_addr v4{};
  in6_addr v6{};
  const bool is_v4 = inet_pton(AF_INET, text.c_str(), &v4) == 1;
  if (!is_v4 && inet_pton(AF_INET6, text.c_str(), &v6) != 1) return false;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return false;
  bool found = false;
  for (const ifaddrs* at = list; at != nullptr && !found; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    if (is_v4 && at->ifa_addr->sa_family == AF_INET) {
      found = reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr.s_addr == v4.s_addr;
    } else if (!is_v4 && at->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& theirs = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr;
      found = IN6_ARE_ADDR_EQUAL(&theirs, &v6);
    }
  }
  freeifaddrs(list);
  return found;
}

}  // namespace

bool HostSlots::first_ones() const {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] != static_cast<int>(i)) return false;
  }
  return true;
}

std::string HostSlots::list() const {
  return fmt::format("{}", fmt::join(slots, ","));
}

HostPool parse_hostfile(std::string_view text, const std::string& file) {
  HostPool pool;
  std::set<std::string> names;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    ++number;
    const std::vector<std::string> words = words_of(line.substr(0, line.find('#')));
    if (!words.empty()) add_line(pool, names, words, {file, number});
  }
  TESSERA_REQUIRE(!pool.empty(),
                  Config,
                  fmt::format("{}: the hostfile names no host", file),
                  "write one host a line: node-0 slots=4");
  return pool;
}

HostPool read_hostfile(const std::string& path) {
  std::error_code unknown;
  const std::uintmax_t bytes = std::filesystem::file_size(path, unknown);
  TESSERA_REQUIRE(unknown || bytes <= kMostHostfileBytes,
                  Config,
                  fmt::format("{} has {} and is not a hostfile", path, text::bytes(bytes)),
                  "write one host a line: node-0 slots=4");
  return parse_hostfile(files::read_within(path), path);
}

HostPool filter_hosts(HostPool pool, const HostFilter& filter) {
  const bool filtered = !filter.include.empty() || !filter.exclude.empty();
  if (!filter.include.empty() && !filter.exclude.empty())
    refuse_filter("--include and --exclude exclude each other", "keep one of them");
  const bool counted = std::ranges::any_of(pool, &HostSlots::counted);
  if (filtered && (filter.num_nodes || (filter.num_per_host && counted))) {
    refuse_filter("--include and --exclude cannot be combined with --num_nodes or --num_gpus",
                  "keep one of the two ways to choose hosts and slots");
  }
  keep_first(pool, filter);
  if (!filtered) return pool;
  const bool include = !filter.include.empty();
  const std::vector<std::set<int>> named = include ? named_slots(pool, filter.include, "--include")
                                                   : named_slots(pool, filter.exclude, "--exclude");
  for (std::size_t i = 0; i < pool.size(); ++i) {
    std::erase_if(pool[i].slots, [&](int slot) { return named[i].contains(slot) != include; });
  }
  std::erase_if(pool, [](const HostSlots& host) { return host.slots.empty(); });
  if (pool.empty()) refuse_filter("--exclude leaves no slot of any host", "exclude fewer slots");
  return pool;
}

int num_slots(const HostPool& pool) {
  std::size_t count = 0;
  for (const HostSlots& host : pool)
    count += host.slots.size();
  return static_cast<int>(count);
}

std::string describe(const HostPool& pool) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < pool.size() && i < kShown; ++i) {
    text += fmt::format("{}{} ({} {})",
                        i == 0 ? "" : ", ",
                        pool[i].name,
                        pool[i].slots.size() == 1 ? "slot" : "slots",
                        ranges_of(pool[i].slots));
  }
  return pool.size() <= kShown ? text : fmt::format("{} and {} more", text, pool.size() - kShown);
}

bool is_this_host(std::string_view name) {
  if (name == "localhost" || name.starts_with("127.") || name == "::1") return true;
  std::array<char, kMostNameBytes + 1> buffer{};
  if (gethostname(buffer.data(), buffer.size() - 1) == 0) {
    const std::string own = buffer.data();
    const std::string short_own = own.substr(0, own.find('.'));
    const bool has_domain = own.size() != short_own.size();
    // A short name means this host; with domains on both sides they must agree.
    const bool is_short = name.find('.') == std::string_view::npos;
    if (name == own || (is_short && name == short_own) ||
        (!is_short && !has_domain && name.substr(0, name.find('.')) == own))
      return true;
  }
  return has_address(name);
}

std::vector<std::string> expand_hostlist(std::string_view list) {
  std::vector<std::string> hosts;
  for (const std::string_view item : items_of(list)) {
    std::vector<std::string> names = expand_item(item, list);
    if (hosts.size() + names.size() > kMostHosts)
      refuse_list(list, fmt::format("has more than {} hosts", kMostHosts));
    hosts.insert(
        hosts.end(), std::make_move_iterator(names.begin()), std::make_move_iterator(names.end()));
  }
  return hosts;
}

std::vector<int> expand_counts(std::string_view counts) {
  std::vector<int> out;
  const auto refuse = [&](std::string_view part) {
    throw Error(
        Error::Kind::Config,
        fmt::format("the counts of tasks \"{}\" have the part \"{}\"", counts.substr(0, 200), part),
        "expected, as Slurm writes them: 4(x2),3");
  };
  for (const std::string& part : text::split(counts, ',')) {
    const std::string_view item = part;
    const std::size_t open = item.find("(x");
    const std::optional<int> count = whole_number(item.substr(0, open));
    std::optional<int> times = 1;
    if (open != std::string_view::npos) {
      if (!item.ends_with(')')) refuse(item);
      times = whole_number(item.substr(open + 2, item.size() - open - 3));
    }
    if (!count || !times || *times < 1) refuse(item);
    if (out.size() + static_cast<std::size_t>(*times) > kMostHosts) refuse(item);
    out.insert(out.end(), static_cast<std::size_t>(*times), *count);
  }
  return out;
}

}  // namespace tessera::hosts
