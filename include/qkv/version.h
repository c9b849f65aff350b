// The version of the headers in use.
#pragma once

#define QKV_VERSION_MAJOR 0
#define QKV_VERSION_MINOR 2
#define QKV_VERSION_PATCH 0
#define QKV_VERSION "0.2.0"
