// Well-formedness of the XML that the pictures use: elements, attributes, text, entities.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace qkv::view {

struct XmlSummary {
  std::string error;                    // empty: well formed
  std::map<std::string, int> elements;  // how often each name was opened
};

class XmlReader {
 public:
  explicit XmlReader(std::string_view text) : text_(text) {}

  XmlSummary read() {
    while (at_ < text_.size() && summary_.error.empty()) {
      if (text_[at_] == '<') {
        tag();
      } else {
        character("text");
      }
    }
    if (!open_.empty()) fail("not closed: " + open_.back());
    return summary_;
  }

 private:
  void fail(const std::string& why) {
    if (summary_.error.empty()) summary_.error = why + " at byte " + std::to_string(at_);
  }

  static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == ':' || c == '-';
  }

  std::string name() {
    std::string out;
    while (at_ < text_.size() && is_name(text_[at_])) out += text_[at_++];
    if (out.empty()) fail("a name is missing");
    return out;
  }

  void character(const std::string& where) {
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (c < 0x20 && c != '\n') return fail("control character in " + where);
    if (c == '<') return fail("< in " + where);
    if (c == '&') {
      const std::size_t end = text_.find(';', at_);
      const std::string_view entity = end == std::string_view::npos ? "" : text_.substr(at_, end - at_ + 1);
      if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;" && entity != "&#39;")
        return fail("bad entity");
      at_ = end;
    }
    ++at_;
  }

  void tag() {
    ++at_;
    if (at_ < text_.size() && text_[at_] == '/') {
      ++at_;
      const std::string closed = name();
      if (open_.empty() || open_.back() != closed) return fail("closes " + closed);
      open_.pop_back();
    } else {
      open_.push_back(name());
      ++summary_.elements[open_.back()];
      attributes();
      if (at_ < text_.size() && text_[at_] == '/') {
        ++at_;
        open_.pop_back();
      }
    }
    if (at_ >= text_.size() || text_[at_++] != '>') fail("a tag does not end");
  }

  void attributes() {
    std::map<std::string, int> seen;
    while (summary_.error.empty() && at_ < text_.size() && text_[at_] == ' ') {
      ++at_;
      const std::string key = name();
      if (++seen[key] > 1) return fail("attribute twice: " + key);
      if (text_.substr(at_, 2) != "=\"") return fail("attribute without a value");
      at_ += 2;
      while (summary_.error.empty() && at_ < text_.size() && text_[at_] != '"') character("attribute");
      ++at_;
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<std::string> open_;
  XmlSummary summary_;
};

}  // namespace qkv::view
