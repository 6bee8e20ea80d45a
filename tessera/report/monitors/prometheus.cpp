// SPDX-License-Identifier: Apache-2.0
// The newest metrics in Prometheus' text format, served on this host while the training runs.
// Source: prometheus.io, Exposition formats.
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/loopback.h"
#include "tessera/base/text.h"
#include "tessera/report/monitors/monitor.h"

namespace tessera::report {
namespace {

struct PrometheusOptions {
  bool enabled = false;
  std::string address = "127.0.0.1:9464";
  void describe(config::Fields& fields);
  void check(config::Problems& problems, const config::Origins& origins) const;
};

void PrometheusOptions::describe(config::Fields& f) {
  f.field("enabled", enabled, {.text = "Serve the newest metrics for Prometheus while training."});
  f.field("address",
          address,
          {.text = "Where they are served: a port of this host (127.0.0.1:9464; port 0 takes a "
                   "free one) or a socket (unix:/path). Other hosts cannot connect."});
}

void PrometheusOptions::check(config::Problems& problems, const config::Origins& origins) const {
  if (!enabled) return;
  if (const auto why = loopback::problem_of(address)) {
    problems.add(origins.place("prometheus.address"),
                 "prometheus.address",
                 fmt::format("\"{}\": {}", address, *why),
                 "write \"127.0.0.1:9464\", or \"unix:/path/of/a.sock\"");
  }
}

const bool kPrometheusIsASection =
    config::add_section<PrometheusOptions>("prometheus", 50, "Metrics for Prometheus.");

/// Replaces all characters except letters, digits and underscores.
std::string metric_name(std::string_view text) {
  std::string out = "tessera_" + file_name_of(text);
  for (char& c : out) {
    if (c == '.' || c == '-') c = '_';
  }
  return out;
}

std::string label_value(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

class PrometheusMonitor final : public Monitor {
 public:
  explicit PrometheusMonitor(const MonitorContext& context)
      : run_(label_value(context.run_dir.filename().string())),
        server_(context.sections.get<PrometheusOptions>().address,
                [this](const loopback::Request& request) { return answer(request); }) {}

  void write(const Reading& reading) override {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, value] : reading.values.members()) {
      if (value.is_number()) newest_[metric_name(key)] = value.as_double();
      if (!value.is_object()) continue;
      constexpr std::string_view kTerms = "terms";
      const std::string split =
          key.ends_with(kTerms) ? key.substr(0, key.size() - kTerms.size()) : key + ".";
      for (const auto& [term, mean] : value.members()) {
        if (mean.is_number()) newest_[metric_name(split + term)] = mean.as_double();
      }
    }
    newest_["tessera_samples"] = static_cast<double>(reading.samples);
    newest_["tessera_last_step_timestamp_seconds"] = reading.time;
  }
  [[nodiscard]] std::string place() const override {
    const bool port = !server_.address().starts_with("unix:");
    return port ? "http://" + server_.address() + "/metrics" : server_.address();
  }

 private:
  loopback::Response answer(const loopback::Request& request) {
    if (request.path != "/metrics") return {404, "text/plain; charset=utf-8", "see /metrics\n"};
    const std::lock_guard lock(mutex_);
    std::string out;
    for (const auto& [name, value] : newest_) {
      out += fmt::format(
          "# TYPE {0} gauge\n{0}{{run=\"{1}\"}} {2}\n", name, run_, text::number(value));
    }
    return {200, "text/plain; version=0.0.4; charset=utf-8", std::move(out)};
  }

  std::string run_;
  std::mutex mutex_;
  std::map<std::string, double> newest_;
  loopback::Server server_;  // declared last: its thread reads the other members
};

const bool kPrometheusIsThere = monitors().add(
    "prometheus",
    {[](const config::Sections& all) { return all.get<PrometheusOptions>().enabled; },
     [](const MonitorContext& context) -> std::unique_ptr<Monitor> {
       return std::make_unique<PrometheusMonitor>(context);
     }});

}  // namespace
}  // namespace tessera::report
