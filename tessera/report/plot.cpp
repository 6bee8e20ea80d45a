// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"

namespace tessera::report {
namespace {

constexpr double kWidth = 760, kHeight = 420, kLeft = 64, kRight = 20, kTop = 24, kBottom = 48;
constexpr std::size_t kMaxPoints = 1500;  // maximum points of a polyline; more are not visible

/// The plot area in data coordinates.
struct Frame {
  double x0 = 0, x1 = 1, y0 = 0, y1 = 1;
  [[nodiscard]] double x(double step) const {
    return kLeft + (step - x0) / (x1 - x0) * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double y(double loss) const {
    return kHeight - kBottom - (loss - y0) / (y1 - y0) * (kHeight - kTop - kBottom);
  }
};

/// 1, 2 or 5 times a power of ten, so that about `count` ticks fit.
double tick_step(double range, int count) {
  const double raw = range / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::vector<LossPoint> smoothed(const std::vector<LossPoint>& points) {
  // Exponential mean over about a fiftieth of the curve.
  const double alpha = 1.0 / std::max(1.0, static_cast<double>(points.size()) / 50.0);
  std::vector<LossPoint> out;
  double mean = 0;
  for (const LossPoint& point : points) {
    if (!std::isfinite(point.value)) continue;
    mean = out.empty() ? point.value : mean + alpha * (point.value - mean);
    out.push_back({point.step, mean});
  }
  return out;
}

Frame frame_of(const LossHistory& history) {
  Frame frame{
      0, 1, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const auto* points : {&history.train, &history.eval}) {
    for (const LossPoint& point : *points) {
      if (!std::isfinite(point.value)) continue;
      frame.x1 = std::max(frame.x1, static_cast<double>(point.step));
      frame.y0 = std::min(frame.y0, point.value);
      frame.y1 = std::max(frame.y1, point.value);
    }
  }
  if (!(frame.y0 < frame.y1)) {
    frame.y0 = std::isfinite(frame.y0) ? frame.y0 - 0.5 : 0;
    frame.y1 = frame.y0 + 1;
  }
  const double margin = 0.05 * (frame.y1 - frame.y0);
  frame.y0 = std::max(0.0, frame.y0 - margin);
  frame.y1 += margin;
  return frame;
}

std::string polyline(const std::vector<LossPoint>& points,
                     const Frame& frame,
                     const std::string& style) {
  std::string out = "<polyline fill=\"none\" " + style + " points=\"";
  const std::size_t every = std::max<std::size_t>(1, points.size() / kMaxPoints);
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i % every != 0 && i + 1 != points.size()) continue;
    if (!std::isfinite(points[i].value)) continue;
    out += fmt::format(
        "{:.1f},{:.1f} ", frame.x(static_cast<double>(points[i].step)), frame.y(points[i].value));
  }
  return out + "\"/>\n";
}

std::string axes(const Frame& frame) {
  std::string out;
  const double dy = tick_step(frame.y1 - frame.y0, 6);
  for (double y = std::ceil(frame.y0 / dy) * dy; y <= frame.y1; y += dy) {
    out += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#e4e4e4\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.4g}</text>\n",
        kLeft,
        kWidth - kRight,
        frame.y(y),
        kLeft - 8,
        frame.y(y) + 4,
        y);
  }
  const double dx = std::max(1.0, tick_step(frame.x1 - frame.x0, 6));
  for (double x = 0; x <= frame.x1; x += dx) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                       frame.x(x),
                       kHeight - kBottom + 20,
                       static_cast<std::int64_t>(x));
  }
  return out + fmt::format(
                   "<text x=\"{:.0f}\" y=\"{}\" text-anchor=\"middle\">step</text>\n"
                   "<text x=\"16\" y=\"{:.0f}\" transform=\"rotate(-90 16 {:.0f})\" "
                   "text-anchor=\"middle\">loss (nats a token)</text>\n",
                   (kLeft + kWidth - kRight) / 2,
                   kHeight - 10,
                   kHeight / 2,
                   kHeight / 2);
}

}  // namespace

std::string loss_plot(const LossHistory& history) {
  const Frame frame = frame_of(history);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n<rect width=\"{0}\" "
      "height=\"{1}\" fill=\"white\"/>\n",
      kWidth,
      kHeight);
  out += axes(frame);
  out += polyline(history.train, frame, "stroke=\"#9db9d8\" stroke-width=\"1\"");
  out += polyline(smoothed(history.train), frame, "stroke=\"#1f5fa8\" stroke-width=\"2\"");
  if (!history.eval.empty())
    out += polyline(history.eval, frame, "stroke=\"#d9660c\" stroke-width=\"2\"");
  for (const LossPoint& point : history.eval) {
    if (!std::isfinite(point.value)) continue;
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"#d9660c\"/>\n",
                       frame.x(static_cast<double>(point.step)),
                       frame.y(point.value));
  }
  out += fmt::format(
      "<text x=\"{0}\" y=\"{1}\" fill=\"#1f5fa8\" text-anchor=\"end\">training</text>\n",
      kWidth - kRight - 4,
      kTop + 10);
  if (!history.eval.empty()) {
    out += fmt::format(
        "<text x=\"{}\" y=\"{}\" fill=\"#d9660c\" text-anchor=\"end\">held out: {:.3f}</text>\n",
        kWidth - kRight - 4,
        kTop + 28,
        history.eval.back().value);
  }
  return out + "</svg>\n";
}

void write_loss_plot(const std::filesystem::path& path, const LossHistory& history) {
  if (history.train.empty() && history.eval.empty()) return;
  files::write_atomic(path, loss_plot(history));
}

}  // namespace tessera::report
