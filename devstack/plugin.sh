#!/usr/bin/env bash
# The devstack plugin of cyborg_quota: a Cyborg whose binds are charged to quota.
#
# devstack sources this file once for each phase, with the names of the phase as arguments:
# https://docs.openstack.org/devstack/latest/plugins.html. The settings are in the file `settings` beside it.

CYBORG_QUOTA_API_MODULE=cyborg_quota.cyborg.wsgi:application

function install_cyborg_quota {
    pip_install "${CYBORG_QUOTA_DIR}[mysql,postgresql,keystone,api]"
}

function configure_cyborg_quota {
    sudo install -d -o "$STACK_USER" "$CYBORG_QUOTA_CONF_DIR"
    # The file holds the password of the database.
    install -m 600 /dev/null "$CYBORG_QUOTA_CONF_FILE"
    iniset "$CYBORG_QUOTA_CONF_FILE" database connection "$(database_connection_url cyborg_quota)"
    iniset "$CYBORG_QUOTA_CONF_FILE" quota resources "$CYBORG_QUOTA_RESOURCES"
    iniset "$CYBORG_QUOTA_CONF_FILE" limits driver "$CYBORG_QUOTA_LIMIT_DRIVER"
    iniset "$CYBORG_QUOTA_CONF_FILE" cyborg source "$CYBORG_QUOTA_SOURCE"
    iniset "$CYBORG_CONF_FILE" cyborg_quota config_file "$CYBORG_QUOTA_CONF_FILE"

    # The API: another WSGI module in the file that Cyborg's plugin wrote, which names a script or a module.
    if [[ -f $CYBORG_UWSGI_CONF ]]; then
        inidelete "$CYBORG_UWSGI_CONF" uwsgi wsgi-file
        iniset "$CYBORG_UWSGI_CONF" uwsgi module "$CYBORG_QUOTA_API_MODULE"
    fi
}

function cyborg_quota {
    local program=$1
    shift
    "$(get_python_exec_prefix)/$program" --config-file "$CYBORG_QUOTA_CONF_FILE" "$@"
}

function init_cyborg_quota {
    recreate_database cyborg_quota
    cyborg_quota cyborg-quota db sync
    if [[ $CYBORG_QUOTA_LIMIT_DRIVER == database && -n $CYBORG_QUOTA_DEFAULT_LIMITS ]]; then
        # One word for each limit.
        # shellcheck disable=SC2086
        cyborg_quota cyborg-quota set --default $CYBORG_QUOTA_DEFAULT_LIMITS
    fi
}

function start_cyborg_quota {
    local prefix
    prefix=$(get_python_exec_prefix)
    if is_service_enabled cyborg-cond; then
        # Cyborg's plugin has started the conductor without quota.
        stop_process cyborg-cond
        run_process cyborg-cond "$prefix/cyborg-quota-conductor --config-file $CYBORG_CONF_FILE"
    fi
    if is_service_enabled cyborg-quota-expirer; then
        run_process cyborg-quota-expirer "$prefix/cyborg-quota-expirer --config-file $CYBORG_QUOTA_CONF_FILE"
    fi
}

function stop_cyborg_quota {
    stop_process cyborg-quota-expirer
}

function cleanup_cyborg_quota {
    sudo rm -rf "$CYBORG_QUOTA_CONF_DIR"
}

if is_service_enabled cyborg-api cyborg-cond; then
    case "$1 ${2:-}" in
    "stack install")
        echo_summary "Installing cyborg_quota"
        install_cyborg_quota
        ;;
    "stack post-config")
        echo_summary "Configuring cyborg_quota"
        configure_cyborg_quota
        init_cyborg_quota
        ;;
    "stack extra")
        echo_summary "Starting cyborg_quota"
        start_cyborg_quota
        ;;
    "unstack ")
        stop_cyborg_quota
        ;;
    "clean ")
        cleanup_cyborg_quota
        ;;
    esac
fi
