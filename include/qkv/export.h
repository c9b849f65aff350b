// The visibility mark of everything public. Not: configuration.
#pragma once

#define QKV_API __attribute__((visibility("default")))
